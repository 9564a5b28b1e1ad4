"""A step of any rank of any layout without the machine: the step that will really run, on tensors without data.

Nothing is computed and nothing is sent. What a rank holds, sends and launches follows from shapes alone, so it is that
of the real step; docs/dry_run.md says what is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterbench.job import TrainingJob
from clusterbench.job.passes import Executed
from clusterbench.parallel import Parallelism, active_in, objection_to


@dataclass(frozen=True)
class Sent:
    """Collectives or messages of one kind that follow each other: ``count`` of ``size_bytes`` each."""

    axis: str
    op: str
    size_bytes: int
    dtype: str
    group_size: int
    count: int


@dataclass(frozen=True)
class Held:
    """Bytes of one category that are alive at the peak, and where in the step they were made; empty for before it."""

    category: str
    made_in: str
    size_bytes: int


@dataclass(frozen=True)
class DryRank:
    """One step of one rank, after its optimizer has its state.

    Attributes
    ----------
    rank
        Of the whole layout.
    memory
        Peak bytes by category and their ``total``, as :data:`clusterbench.job.passes.MEMORY` has them.
    peak_at
        When most bytes are alive: a module in forward or backward, or the optimizer.
    held
        What is alive then, the largest first.
    sent
        In order.
    chain
        The longest chain of collectives of which each needs the result of the one before: how many along each axis.
    executed
        Operators that multiply, with their FLOPs.
    operators
        What the host launches for one micro-batch: operators that compute, of forward and backward.
    spent_s, process_bytes
        What the dry run itself took.
    """

    rank: int
    memory: Mapping[str, int]
    peak_at: str
    held: Sequence[Held]
    sent: Sequence[Sent]
    chain: Mapping[str, int]
    executed: Sequence[Executed]
    operators: int
    spent_s: float
    process_bytes: int


def objection(job: TrainingJob, every: Sequence[Parallelism]) -> str | None:
    """Why a step cannot be dry-run, or not be run at all; None when it can."""
    active = active_in(job.layout, every)
    reasons = (parallelism.needs_data(job) for parallelism in active)
    return objection_to(job, active) or next(filter(None, reasons), None)


def stage_ranks(job: TrainingJob, rank_order: str) -> list[int]:
    """One rank of each place along pp: the ranks of a stage hold and send alike, but for uneven shares."""
    first: dict[int, int] = {}
    for rank in range(job.layout.world_size):
        first.setdefault(job.layout.coordinates(rank, rank_order)["pp"], rank)
    return list(first.values())
