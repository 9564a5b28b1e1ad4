"""What an interrupted soak adds to the ledger."""

import random
from collections import Counter

import pytest

from tests.lab.soak import Soak


class Interrupted(Soak):
    """Whose third fault is not judged yet when it is interrupted."""

    def __init__(self) -> None:
        super().__init__(lab=None, folder=None, launcher=None, chance=random.Random(1), weights={"cut link": 1})  # type: ignore[arg-type]
        self.steps: list[str] = []

    def begin(self) -> None:
        self.steps.append("begin")

    def is_running(self) -> bool:
        return True

    def wait_for_progress(self) -> bool:
        return True

    def outcomes(self) -> list:  # type: ignore[type-arg]
        return []

    def hit(self, kind: str) -> tuple[str, int]:
        return "n1", -1

    def await_name(self, before: int, kind: str, target: str, rank: int) -> str:
        if self.faults.total() == 2:
            raise KeyboardInterrupt
        return "named" if self.faults.total() else "unnamed"

    def end(self) -> None:
        self.steps.append("end")

    def check_disk(self) -> None:
        self.steps.append("check")


def test_an_interrupted_soak_counts_what_it_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    soak = Interrupted()

    soak.run(10)

    assert soak.faults == Counter({"cut link": 2})
    assert soak.failures == Counter({"unnamed": 1})
    assert soak.steps == ["begin", "end", "check"]
