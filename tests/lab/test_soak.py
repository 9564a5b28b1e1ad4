"""What a soak reads of a run, and what an interrupted one adds to the ledger."""

import io
import itertools
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from clusterbench.launch.executions import Execution
from clusterbench.launch.progress import Lines, progress_on
from clusterbench.types import Outcome
from tests.lab.soak import Soak, SoFar, said_to_be_finished
from tests.lab.strikes import Strikes, Struck
from tests.report.synthetic import case


class CutLinks(Strikes):
    """Each under another launcher."""

    def __init__(self) -> None:
        super().__init__(lab=None, folder=Path(), chance=random.Random(1))  # type: ignore[arg-type]
        self.pids = itertools.count(1)

    def launcher_pid(self) -> int:
        return next(self.pids)

    def hit(self, kind: str, run: object) -> Struck:
        return Struck("n1")


class Interrupted(Soak):
    """Whose third fault is not judged yet when it is interrupted."""

    def __init__(self) -> None:
        super().__init__(lab=None, run_folder=Path(), launcher=None, strikes=CutLinks(), weights={"cut link": 1})  # type: ignore[arg-type]
        self.process = object()  # type: ignore[assignment]
        self.steps: list[str] = []

    def begin(self) -> None:
        self.steps.append("begin")

    def is_running(self) -> bool:
        return True

    def wait_for_progress(self) -> bool:
        return True

    def so_far(self) -> SoFar:
        return SoFar(0, 0, {})

    def outcomes(self) -> list[Outcome]:
        return []

    def await_name(self, before: SoFar, kind: str, target: str, rank: int) -> str:
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


def test_what_was_said_of_a_host_before_it_is_hit_names_nobody() -> None:
    soak = Interrupted()
    words = "clusterbench: the launcher ended with 255; host cb2 was lost: its agent said nothing for 20 s"
    soak.said = [words, "[1/2] planted/1n4/x ..."]
    assert soak.names_in_words("cb2", from_line=0)
    assert not soak.names_in_words("cb2", from_line=1)
    assert not soak.names_in_words("cb1", from_line=0)


def test_a_launch_that_lost_a_host_is_waited_for_until_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    soak, waited = Interrupted(), list[float]()
    pids = iter([7, 0, 7, 8])
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr(soak.strikes, "launcher_pid", lambda: next(pids))
    soak.lost_a_host = 7
    soak.wait_for_another_launch()
    assert (len(waited), soak.lost_a_host) == (3, 0)


def test_a_soak_reads_the_lines_that_a_run_prints() -> None:
    stream = io.StringIO()
    progress = progress_on(stream, shows=lambda *_: "2 ms")
    assert isinstance(progress, Lines)
    for attempt, status, reason in ((1, "ok", ""), (2, "ok", ""), (1, "failed", "rank 1: is ok")):
        execution = Execution(case("x", repeats=3), 0, attempt)
        progress.begin(1, 3, execution)
        progress.end(Outcome("planted/1n4/x", "", 0, attempt, status, reason, elapsed_s=1.0), None)

    lines = stream.getvalue().splitlines()

    assert [said_to_be_finished(line) for line in lines] == ["", "planted/1n4/x"] * 2 + ["", ""]


def test_a_soak_is_explained_where_its_number_is_none() -> None:
    for word, exit_code in {"--help": 0, "x": 2}.items():
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab.soak", word], capture_output=True, text=True, check=False
        )
        assert done.stdout.startswith("Random faults at random moments")
        assert (done.returncode, done.stderr) == (exit_code, "")
