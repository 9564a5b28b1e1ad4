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
    speeds = [each.best.tokens_per_s_per_rank if each.best is not None else 0.0 for each in on_nodes]
    place = fallen(speeds)
    return None if place is None else on_nodes[place]


def fallen(speeds: Sequence[float]) -> int | None:
    """The place of the first that is more than :data:`FALL` below the most before it; 0 is no speed.

    >>> fallen([100.0, 110.0, 0.0, 90.0, 87.0]), fallen([100.0, 90.0])
    (4, None)
    """
    most = 0.0
    for place, speed in enumerate(speeds):
        if 0 < speed < (1 - FALL) * most:
            return place
        most = max(most, speed)
    return None
