"""What all tests share: who runs beside whom, torch with one thread, and the system's chromium."""

from __future__ import annotations

import fcntl
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import share

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from xdist.workermanage import WorkerController


settings.register_profile("any speed", deadline=None)  # other work on these cores makes no example wrong
settings.load_profile("any speed")

collect_ignore = ["compiler.py"]
"""What ranks import before they are forked is not for the processes that collect tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1", metavar="1/3", help="of the cells of large matrices, drawn by the commit")


def pytest_configure(config: pytest.Config) -> None:
    try:
        share.choose(config.getoption("--share"))
    except ValueError as error:
        raise pytest.UsageError(f"--share {error}") from None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if said := share.told():
        terminalreporter.write_line(said)


LAB, MPI, RANKS = "lab", "mpi", {"gloo", "browser"}
"""Marks of tests that start processes."""


@cache
def marks_in(path: Path) -> frozenset[str]:
    """All marks that stand in a file of tests."""
    return frozenset(re.findall(r"pytest\.mark\.(\w+)", path.read_text(encoding="utf-8")))


class ByWaits(LoadScopeScheduling):
    """Gives the lab's files to one worker, those of MPI to one, and each other file to whichever is free.

    The lab waits for launchers and silences more than half of its time, so three workers keep two cores busy; four,
    two of them with a lab each, leave them idle for a twentieth of the time and take no less. MPI ranks, which
    spin, are those of one test of the lab and one other at a time, and cases that share a start of ranks have it.
    What starts processes begins first, but for the last worker: that begins with what starts none, and so has work
    while the lab measures a rate alone. ``--dist loadgroup`` would group, but under pytest 9.2 it silently groups
    nothing: https://github.com/pytest-dev/pytest-xdist/issues/1386
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((mark for mark in (LAB, MPI) if mark in self._marks(path)), path)

    def _marks(self, path: str) -> frozenset[str]:
        return marks_in(self.config.rootpath / path)

    def _assign_work_unit(self, node: WorkerController) -> None:
        choose = max if node is self.nodes[-1] else min  # of equals the first: the one with the most tests
        self.workqueue.move_to_end(choose(self.workqueue, key=self._turn_of), last=False)
        super()._assign_work_unit(node)

    def _turn_of(self, unit: str) -> int:
        if unit in (LAB, MPI):
            return 0 if unit == LAB else 1  # the lab takes longest
        return 2 if self._marks(unit) & RANKS else 3


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByWaits(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draws cells of matrices and tests that run in turn, and puts tests that run alone first."""
    left_out = share.left_out(item.nodeid for item in items if item.get_closest_marker("matrix"))
    left_out |= share.left_out_in_turn([item.nodeid for item in items if item.get_closest_marker("in_turn")])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = alone_first(item for item in items if item.nodeid not in left_out)


def alone_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """So the last worker still has tests that start no processes while one runs alone."""
    return sorted(items, key=lambda item: item.get_closest_marker("alone") is None)


@pytest.fixture(autouse=True, scope="session")
def _what_fails_is_raised() -> None:
    """A chart or a diagnosis that fails costs a reader one sentence, and here the test."""
    from clusterbench import diagnoses, report

    def raised(name: str, kind: type, error: Exception) -> Any:
        raise error

    diagnoses.failed = report.failed = raised


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Has a test that measures a rate of this machine wait until no other worker runs one that starts processes.

    Around the whole protocol, so that waiting counts for no time limit.
    """
    marks = {mark.name for mark in item.iter_markers()}
    run = getattr(item.config, "workerinput", {}).get("testrunuid")
    if run is None or not marks & {"alone", LAB, MPI, *RANKS}:
        return (yield)
    with turn(Path(tempfile.gettempdir()) / f"clusterbench-tests-{run}", is_alone="alone" in marks):
        return (yield)


@contextmanager
def turn(lock: Path, is_alone: bool) -> Iterator[None]:
    """Holds a lock that many may have at once, or one alone; who waits to be alone lets no others pass."""
    with open(f"{lock}.next", "w") as following, open(f"{lock}.now", "w") as now:
        fcntl.flock(following, fcntl.LOCK_EX)
        fcntl.flock(now, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(following, fcntl.LOCK_UN)
        yield


def pytest_collection_finish() -> None:
    """Has torch compute with one thread, as ranks do: several spin while one of them waits for a core.

    Beside other work on two cores they made 300 sums of 156,000 numbers cost 15 CPU seconds instead of 0.7.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def no_ignored_signals() -> Iterator[None]:
    """What the shell that began the tests ignores, as under nohup or behind ``&``, would stay ignored in a run."""
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    ending = [number for number in ignored if number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)]
    for number in ending:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number in ending:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "chromium is not installed: apt-get install --no-install-recommends chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a tab of its own, and fails the test on whatever it complains of or asks anybody for.

    ``options`` are those of a browser context.
    """
    complaints: list[str] = []
    contexts = []

    def visit(address: str, width: int = 1280, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: complaints.append(request.url) if _leaves(request.url) else None)
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def _leaves(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))
