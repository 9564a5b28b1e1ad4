"""Dry runs of ranks, each in a process of its own, as many at once as there are cores."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from clusterbench.errors import ClusterbenchError
from clusterbench.job import TrainingJob
from clusterbench.job.dry import DryRank
from clusterbench.parallel import Parallelism
from clusterbench.run_folder.records import parsed, record_of
from clusterbench.trainers import Trainer

_PR_SET_PDEATHSIG = 1


class DryRunFailed(ClusterbenchError):
    """A step that cannot even be run without data; the message ends with where."""


@dataclass(frozen=True)
class DryTask:
    """One rank of one step; equal ones have equal answers. ``every`` are all parallelisms with their options."""

    trainer: Trainer
    job: TrainingJob
    every: tuple[Parallelism, ...]
    rank_order: str
    rank: int


def dry_ranks(
    trainer: Trainer, job: TrainingJob, every: Sequence[Parallelism], rank_order: str, ranks: Sequence[int]
) -> Iterator[DryRank]:
    """The dry step of each of ``ranks``, in the order in which they are done.

    Raises
    ------
    DryRunFailed
        If one of them fails.
    """
    for _, answer in dry_answers(DryTask(trainer, job, tuple(every), rank_order, rank) for rank in ranks):
        if isinstance(answer, DryRunFailed):
            raise answer
        yield answer


def dry_answers(tasks: Iterable[DryTask]) -> Iterator[tuple[DryTask, DryRank | DryRunFailed]]:
    """What came of each task, in the order in which they are done."""
    import clusterbench.dry.rank  # noqa: F401  # torch is imported once, before the processes are forked

    context, at_once = multiprocessing.get_context("fork"), len(os.sched_getaffinity(0))
    waiting, under_way = list(tasks)[::-1], dict[Connection, Any]()
    while waiting or under_way:
        while waiting and len(under_way) < at_once:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_say, args=(theirs, waiting[-1]), daemon=True)
            with _signals_wait():
                process.start()
            theirs.close()
            under_way[ours] = (process, waiting.pop())
        for ended in wait(list(under_way)):
            assert isinstance(ended, Connection)
            process, task = under_way.pop(ended)
            yield task, _heard(ended, process, task.rank)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Has signals wait till a fork is over: what a handler raises in Python's hooks around it is printed and lost."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _heard(said: Connection, process: Any, rank: int) -> DryRank | DryRunFailed:
    try:
        with said:
            text = said.recv_bytes()
    except EOFError:
        text = b""
    process.join()
    try:
        answer = parsed(text) if text else {"error": f"its process ended with {process.exitcode}"}
    except ValueError as error:  # of sequences as long as no card holds
        answer = {"error": f"of its figures one is {error}"}
    if "error" in answer:
        return DryRunFailed(f"the dry run of rank {rank} failed: {answer['error']}")
    return record_of(DryRank, answer)


def _say(answer: Connection, task: DryTask) -> None:
    from clusterbench.dry.rank import dry_rank

    gc.freeze()  # what was imported before the fork: a collection looks through it for 0.45 s
    _end_with_who_asked()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: who asked ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())  # they waited for the fork
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's of itself, whatever this process was told
    answer.send_bytes(json.dumps(_said(lambda: dry_rank(**vars(task)))).encode())


def _end_with_who_asked() -> None:
    """Has the kernel kill this process when that one does not live any more, even after ``kill -9``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    asking = multiprocessing.parent_process()
    if asking is None or os.getppid() != asking.pid:  # it died before the request was made
        os._exit(1)


def _said(run: Callable[[], DryRank]) -> dict[str, Any]:
    try:
        return asdict(run())
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what a person has to know
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split()) or "no word"
        return {"error": f"{type(error).__name__}: {words} ({place.filename}:{place.lineno})"}
