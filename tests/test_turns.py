"""Who runs beside whom: what each worker gets, and that tests which measure a rate of this machine run alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import ByWaits, alone_first, turn


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


MARKS = {
    "lab/test_a.py": ("lab", "mpi"),
    "lab/test_b.py": ("lab",),
    "test_c.py": ("mpi", "gloo"),
    "test_d.py": ("mpi",),
    "test_e.py": ("gloo",),
    "test_f.py": ("browser",),
    "test_g.py": (),
    "test_h.py": (),
}


class Worker:
    """What a scheduler needs of a worker, and what it gave it: indices of tests."""

    shutting_down = False
    gateway = SimpleNamespace(id="worker")

    def __init__(self) -> None:
        self.tests: list[int] = []

    def send_runtest_some(self, indices: Iterable[int]) -> None:
        self.tests += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def files_by_worker(root: Path, num_workers: int) -> list[list[str]]:
    """The files that each worker is given, in their order, where all tests take equally long."""
    for path, marks in MARKS.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("".join(f"@pytest.mark.{mark}\n" for mark in marks))
    every = [f"{path}::test_{number}" for path in MARKS for number in range(4)]
    config: Any = SimpleNamespace(
        rootpath=root, option=SimpleNamespace(loadscopereorder=True), getvalue=lambda name: ["popen"] * num_workers
    )
    scheduler = ByWaits(config, None)
    workers: Sequence[Any] = [Worker() for _ in range(num_workers)]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, every)
    scheduler.schedule()
    for step in range(len(every)):
        for worker in workers:
            if step < len(worker.tests):
                scheduler.mark_test_complete(worker, worker.tests[step])
    assert sorted(test for worker in workers for test in worker.tests) == [*range(len(every))]
    return [[*dict.fromkeys(every[test].partition("::")[0] for test in worker.tests)] for worker in workers]


def test_one_worker_is_in_the_lab_one_starts_with_mpi_and_the_last_with_what_starts_no_processes(
    tmp_path: Path,
) -> None:
    lab, mpi, last = files_by_worker(tmp_path, 3)
    assert lab[:2] == ["lab/test_a.py", "lab/test_b.py"]
    assert mpi[:2] == ["test_c.py", "test_d.py"]
    assert last[:2] == ["test_g.py", "test_h.py"]
    assert {*lab[2:], *mpi[2:], *last[2:]} == {"test_e.py", "test_f.py"}


def test_of_two_workers_each_has_all_of_the_lab_or_all_of_mpi(tmp_path: Path) -> None:
    by_worker = files_by_worker(tmp_path, 2)
    assert by_worker[0][:2] == ["lab/test_a.py", "lab/test_b.py"]
    assert [files for files in by_worker if "test_c.py" in files] == [
        files for files in by_worker if "test_d.py" in files
    ]


def test_one_worker_runs_everything(tmp_path: Path) -> None:
    assert sorted(files_by_worker(tmp_path, 1)[0]) == sorted(MARKS)


def test_who_is_alone_runs_first_and_the_others_keep_their_order() -> None:
    marks = {"first": None, "second": object(), "third": None, "fourth": object()}
    items: list[Any] = [
        SimpleNamespace(name=name, get_closest_marker={"alone": mark}.get) for name, mark in marks.items()
    ]
    items = alone_first(items)
    assert [item.name for item in items] == ["second", "fourth", "first", "third"]
