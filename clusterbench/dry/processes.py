"""Dry runs of several ranks, each in a process of its own, as many at once as there are cores."""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from typing import Any

from clusterbench.dry import DryRank
from clusterbench.errors import ClusterbenchError
from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism
from clusterbench.run_folder.records import parsed, record_of
from clusterbench.trainers import Trainer


class DryRunFailed(ClusterbenchError):
    """A step that cannot even be run without data; the message ends with where."""


def dry_ranks(
    trainer: Trainer, job: TrainingJob, every: Sequence[Parallelism], rank_order: str, ranks: Sequence[int]
) -> Iterator[DryRank]:
    """The dry step of each of ``ranks``, in the order in which they are done.

    Raises
    ------
    DryRunFailed
        If one of them fails.
    """
    import clusterbench.dry.rank  # noqa: F401  # torch is imported once, before the processes are forked

    context, at_once = multiprocessing.get_context("fork"), os.cpu_count() or 1
    waiting, under_way = list(ranks), dict[Connection, Any]()
    while waiting or under_way:
        while waiting and len(under_way) < at_once:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_say, args=(theirs, trainer, job, every, rank_order, waiting[0]), daemon=True
            )
            process.start()
            theirs.close()
            under_way[ours] = (process, waiting.pop(0))
        for ended in wait(list(under_way)):
            assert isinstance(ended, Connection)
            process, rank = under_way.pop(ended)
            yield _heard(ended, process, rank)


def _heard(said: Connection, process: Any, rank: int) -> DryRank:
    try:
        with said:
            text = said.recv_bytes()
    except EOFError:
        text = b""
    process.join()
    answer = parsed(text) if text else {"error": f"its process ended with {process.exitcode}"}
    if "error" in answer:
        raise DryRunFailed(f"the dry run of rank {rank} failed: {answer['error']}")
    return record_of(DryRank, answer)


def _say(
    answer: Connection, trainer: Trainer, job: TrainingJob, every: Sequence[Parallelism], rank_order: str, rank: int
) -> None:
    from clusterbench.dry.rank import dry_rank

    warnings.simplefilter("ignore", DeprecationWarning)  # torch's of itself, whatever this process was told
    answer.send_bytes(json.dumps(_said(lambda: asdict(dry_rank(trainer, job, every, rank_order, rank)))).encode())


def _said(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return run()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what a person has to know
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split()) or "no word"
        return {"error": f"{type(error).__name__}: {words} ({place.filename}:{place.lineno})"}
