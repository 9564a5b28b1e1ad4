"""A function's answers to several tasks, each in a process of its own, as many at once as there are cores."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar

_PR_SET_PDEATHSIG = 1
_ANSWERED, _FAILED = "+-"

Task = TypeVar("Task")


class Failed(NamedTuple):
    """Why there is no answer: the error and where it was raised, or how the process ended."""

    why: str


def cores() -> int:
    """Those that this process may use; one where the system is no Linux, which alone ends a fork with who asked."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def answers(tasks: Iterable[Task], answer: Callable[[Task], str]) -> Iterator[tuple[Task, str | Failed]]:
    """Each task with what it was answered, or :class:`Failed`, in the order in which they are done.

    Parameters
    ----------
    answer
        Is called in a copy of this process, with all that was imported and worked out before.
    """
    context, at_once = multiprocessing.get_context("fork"), cores()
    waiting, under_way = list(tasks)[::-1], dict[Connection, Any]()
    while waiting or under_way:
        while waiting and len(under_way) < at_once:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_say, args=(theirs, answer, waiting[-1]), daemon=True)
            with _signals_wait():
                process.start()
            theirs.close()
            under_way[ours] = (process, waiting.pop())
        for ended in wait(list(under_way)):
            assert isinstance(ended, Connection)
            process, task = under_way.pop(ended)
            yield task, _heard(ended, process)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Has signals wait till a fork is over: what a handler raises in Python's hooks around it is printed and lost."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _heard(said: Connection, process: Any) -> str | Failed:
    try:
        with said:
            text = said.recv_bytes().decode()
    except EOFError:
        text = ""
    process.join()
    if not text:
        return Failed(f"its process ended with {process.exitcode}")
    return text[1:] if text[0] == _ANSWERED else Failed(text[1:])


def _say(to: Connection, answer: Callable[[Task], str], task: Task) -> None:
    gc.freeze()  # what was imported before the fork: a collection looks through it for 0.45 s
    _end_with_who_asked()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: who asked ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())  # they waited for the fork
    to.send_bytes(_said(answer, task).encode())


def _end_with_who_asked() -> None:
    """Has the kernel kill this process when that one does not live any more, even after ``kill -9``."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    asking = multiprocessing.parent_process()
    if asking is None or os.getppid() != asking.pid:  # it died before the request was made
        os._exit(1)


def _said(answer: Callable[[Task], str], task: Task) -> str:
    try:
        return _ANSWERED + answer(task)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what a person has to know
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split()) or "no word"
        return f"{_FAILED}{type(error).__name__}: {words} ({place.filename}:{place.lineno})"
