"""When a warm-up ends that is not counted, and how much is timed then: rank 0 decides, and tells the others.

A GPU that was idle runs its first milliseconds at its highest clock. Under load it comes to the clock that its power
and its heat allow, within a second or ten. What is timed before that is a burst, which no training step sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from clusterbench.formulas.statistics import SETTLED_WITHIN
from clusterbench.types import WarmUp

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_MORE = 1.1
"""How many more iterations than the last rate asks for: a stretch that is a little faster is still long enough."""

_SHORTEST_S = 1e-9

Kind = Literal["probe", "burst", "warm-up", "timed"]
_KINDS: tuple[Kind, ...] = ("probe", "burst", "warm-up", "timed")


@dataclass(frozen=True)
class Rule:
    """When clocks have settled.

    Attributes
    ----------
    stretch_s, within
        Two stretches of the warm-up that follow each other, each at least so long, differ by no more than this share.
    most_s
        Seconds of warm-up beyond which no further stretch goes; two there are always. The probe does not count: it may
        compile, or open connections.
    timed_s
        Seconds that are timed at least.
    most_samples
        That are kept, unless a suite asks for more: of a short iteration each is the mean of several.
    """

    stretch_s: float = 0.5
    within: float = SETTLED_WITHIN
    most_s: float = 10.0
    timed_s: float = 2.0
    most_samples: int = 500


class Stretch(NamedTuple):
    """So many iterations, back to back, and the seconds of the rank that took longest."""

    iterations: int
    seconds: float

    @property
    def each_s(self) -> float:
        return max(self.seconds / self.iterations, _SHORTEST_S)


class Order(NamedTuple):
    """What every rank does next: ``samples`` times ``calls`` iterations.

    ``drift`` is how far the last two stretches are apart, as a share of the shorter; ``warm_up_s`` is what all so far
    took.
    """

    kind: Kind
    samples: int
    calls: int = 1
    is_settled: bool = False
    drift: float = 0.0
    warm_up_s: float = 0.0

    @property
    def iterations(self) -> int:
        return self.samples * self.calls


PROBE = Order("probe", 1)
"""The first of every warm-up: it tells about how long an iteration takes."""


def next_order(past: Sequence[Stretch], asked: int, rule: Rule) -> Order:
    """What follows the stretches so far, of which there is one at least.

    After the probe comes the burst: the iterations that the suite asked for, as far as they fit into a stretch. Then
    stretches until two agree or the time is over, and then what is timed.

    Parameters
    ----------
    asked
        Iterations that the suite asks for: no fewer are timed.

    Examples
    --------
    >>> steady = [Stretch(1, 0.125), Stretch(4, 0.5), Stretch(4, 0.5)]
    >>> next_order(steady[:1], 20, Rule())
    Order(kind='burst', samples=4, calls=1, is_settled=False, drift=0.0, warm_up_s=0.125)
    >>> next_order(steady, 20, Rule())
    Order(kind='timed', samples=20, calls=1, is_settled=True, drift=0.0, warm_up_s=1.125)
    """
    last, warm_up_s = past[-1], sum(stretch.seconds for stretch in past)
    if len(past) == 1:
        fit = max(int(rule.stretch_s / last.each_s), 1)
        return Order("burst", min(asked, fit, rule.most_samples), warm_up_s=warm_up_s)
    before = past[-2]
    drift = abs(before.each_s - last.each_s) / min(before.each_s, last.each_s)
    is_settled = drift <= rule.within and min(before.seconds, last.seconds) >= rule.stretch_s
    more = _filling(rule.stretch_s, last.each_s)
    spent_s = warm_up_s - past[0].seconds
    if not is_settled and spent_s + more * last.each_s <= rule.most_s:
        return Order("warm-up", 1, more, False, drift, warm_up_s)
    timed = max(asked, _filling(rule.timed_s, min(before.each_s, last.each_s)))
    calls = math.ceil(timed / max(asked, rule.most_samples))
    return Order("timed", math.ceil(timed / calls), calls, is_settled, drift, warm_up_s)


def _filling(seconds: float, each_s: float) -> int:
    return math.ceil(_MORE * seconds / each_s)


def decided_by_rank_0(rig: Rig, asked: int, rule: Rule) -> Callable[[Stretch], Order]:
    """Takes each stretch of this rank, and gives what all ranks do next: the same on every one.

    Only rank 0 remembers and decides; the seconds are those of the slowest rank. A collective of the hosts, between
    stretches: the group under test carries nothing of it.
    """
    past: list[Stretch] = []

    def decide(own: Stretch) -> Order:
        slowest_s = rig.host_max(own.seconds)
        said: tuple[float, ...] = ()
        if rig.rank == 0:
            past.append(Stretch(own.iterations, slowest_s))
            order = next_order(past, asked, rule)
            said = (_KINDS.index(order.kind), *order[1:])
        kind, samples, calls, is_settled, drift, warm_up_s = rig.host_tell(said, len(Order._fields))
        return Order(_KINDS[int(kind)], int(samples), int(calls), bool(is_settled), drift, warm_up_s)

    return decide


def warm_up_of(order: Order, burst_s: Sequence[float]) -> WarmUp:
    """What is recorded of a warm-up that ended with ``order``; each of ``burst_s`` is an iteration of this rank."""
    return WarmUp(order.is_settled, order.drift, order.warm_up_s, order.calls, burst_s)
