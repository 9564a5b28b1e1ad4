"""From how many nodes on more of them bring too little: the knee of a model on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from clusterbench.pricing.advice import PROBABLY, Candidate, Question, fastest
from clusterbench.pricing.profiles import Profile
from clusterbench.pricing.rates import KnownRates

FALL = PROBABLY
"""The knee is where tokens/s per GPU of the fastest layout is that much below the best of fewer nodes, with one batch.

By our own choice: smaller differences between two prices are not sure.
"""


@dataclass(frozen=True)
class OnNodes:
    """The fastest layout on so many nodes; None where none fits or is legal."""

    num_nodes: int
    best: Candidate | None


def on_fewer_nodes(question: Question, profile: Profile, known: KnownRates) -> Iterator[OnNodes]:
    """The fastest layout on 1, 2, 4 ... nodes, up to those that are asked about, which come last."""
    for num_nodes in node_counts(question.num_nodes):
        yield OnNodes(num_nodes, fastest(replace(question, num_nodes=num_nodes), profile, known))


def node_counts(most: int) -> list[int]:
    """Powers of two below ``most``, and that.

    >>> node_counts(6)
    [1, 2, 4, 6]
    """
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def knee(on_nodes: Sequence[OnNodes]) -> OnNodes | None:
    """The first, in the order of nodes, that lost more than :data:`FALL`; None where none did."""
    most = 0.0
    for each in on_nodes:
        speed = each.best.tokens_per_s_per_rank if each.best is not None else 0.0
        if 0 < speed < (1 - FALL) * most:
            return each
        most = max(most, speed)
    return None
