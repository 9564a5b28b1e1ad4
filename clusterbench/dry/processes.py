"""Dry runs of ranks, each in a process of its own, as many at once as there are cores."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from clusterbench import forked
from clusterbench.errors import ClusterbenchError
from clusterbench.job import TrainingJob
from clusterbench.job.dry import DryRank
from clusterbench.parallel import Parallelism
from clusterbench.run_folder.records import parsed, record_of
from clusterbench.trainers import Trainer


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

    for task, answer in forked.answers(tasks, _run):
        yield task, _read(answer, task.rank)


def _run(task: DryTask) -> str:
    from clusterbench.dry.rank import dry_rank

    warnings.simplefilter("ignore", DeprecationWarning)  # torch's of itself, whatever this process was told
    return json.dumps(asdict(dry_rank(**vars(task))))


def _read(answer: str | forked.Failed, rank: int) -> DryRank | DryRunFailed:
    if isinstance(answer, forked.Failed):
        return _failed(rank, answer.why)
    try:
        return record_of(DryRank, parsed(answer.encode()))
    except ValueError as error:  # of sequences as long as no card holds
        return _failed(rank, f"of its figures one is {error}")


def _failed(rank: int, why: str) -> DryRunFailed:
    return DryRunFailed(f"the dry run of rank {rank} failed: {why}")
