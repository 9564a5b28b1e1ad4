"""Tests that measure a rate of this machine wait for those that start processes, and the other way round."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.conftest import turn


def test_who_is_alone_waits_for_the_others_and_lets_no_new_one_pass(tmp_path: Path) -> None:
    events: list[str] = []
    first_has_begun, first_may_end, alone_waits = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with turn(tmp_path / "lock", is_alone=False):
            first_has_begun.set()
            first_may_end.wait(10)
            events.append("first ends")

    def alone() -> None:
        first_has_begun.wait(10)
        alone_waits.set()
        with turn(tmp_path / "lock", is_alone=True):
            events.append("alone")

    def late() -> None:
        alone_waits.wait(10)
        threading.Event().wait(0.2)
        with turn(tmp_path / "lock", is_alone=False):
            events.append("late")

    threads = [threading.Thread(target=target) for target in (first, alone, late)]
    for thread in threads:
        thread.start()
    alone_waits.wait(10)
    threading.Event().wait(0.4)
    assert events == []
    first_may_end.set()
    for thread in threads:
        thread.join(10)
    assert events == ["first ends", "alone", "late"]


def test_those_that_are_not_alone_run_together(tmp_path: Path) -> None:
    with turn(tmp_path / "lock", is_alone=False), turn(tmp_path / "lock", is_alone=False):
        pass
