"""What is known of a rank's step that was run without a machine. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


NORMS, LOOK_UPS, COPIES, ELEMENTWISE, UPDATE = "norms", "look-ups", "copies", "elementwise and sums", "update"
SHARDS = "FSDP's buffers"
"""Kinds of operators that multiply no matrices; the others are those of :mod:`clusterbench.job.flops`.

What FSDP gathers and reduces it packs into buffers, and takes out again.
"""


HOST = "the host"
"""Where what is kept in host memory is worked on."""


@dataclass(frozen=True)
class Work:
    """All operators of one kind that compute in one part of the model, in forward or in backward.

    Attributes
    ----------
    where
        ``layers.*.attention`` stands for the layers that do alike. What is in no module is ``the loss``, ``gradients``
        (their sums over ranks, norm and clipping) or ``the optimizer``; with states in host memory these two are
        ``the host``.
    flops
        Of products and attention; others count none.
    read_bytes, written_bytes
        Each operand and each result once, as if no cache held anything.
    """

    where: str
    during: str
    kind: str
    count: int
    flops: int
    read_bytes: int
    written_bytes: int

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


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
    work
        FLOPs and bytes by part of the model and kind of operator; the FLOPs are those of ``executed``.
    host
        Peak bytes in host memory of a step that keeps its states there, by category, each at a moment of its own;
        ``copies`` are gradients on their way. Empty where a step keeps nothing there.
    left_out
        What the real step has and this one has not, and what that means for the figures, in words.
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
    work: Sequence[Work] = ()
    left_out: Sequence[str] = ()
    host: Mapping[str, int] = field(default_factory=dict)


DRY: Pass[DryRank | None] = Pass("dry", DryRank | None)
"""Of one rank of each place along pp; None of the others."""
