"""What is known of a rank's step that was run without a machine. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterbench.job.passes import Executed
from clusterbench.run_folder.passes import Pass


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


DRY: Pass[DryRank | None] = Pass("dry", DryRank | None)
"""Of one rank of each place along pp; None of the others."""
