"""What the ranks of a pipeline hold, and at which of their actions the most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar, cast

from clusterbench.formulas.schedules import (
    objection,
    schedule_named,
)
from clusterbench.formulas.schedules.orders import Action, Kind, round_size

_T = TypeVar("_T")


def peak_held(actions: Iterable[Action], size_of_stage: Callable[[int], float]) -> float:
    """The most activations one rank holds at a time.

    A stage's activations of a microbatch are held from its F to its B, or to its W where backward is split.

    Parameters
    ----------
    size_of_stage
        Activations of one microbatch on a stage; in bytes, or 1 to count them.

    >>> from clusterbench.formulas.schedules import order
    >>> peak_held(order("1f1b", 4, 12, 1)[0], lambda stage: 2.5)
    10.0
    """
    held = peak = 0.0
    for kind, stage, _ in actions:
        if kind == "F":
            held += size_of_stage(stage)
            peak = max(peak, held)
        elif kind != "I":
            held -= size_of_stage(stage)
    return peak


def in_flight(actions: Iterable[Action]) -> dict[int, int]:
    """The most microbatches one rank holds activations of, by stage; the stages need not peak together.

    >>> from clusterbench.formulas.schedules import order
    >>> in_flight(order("interleaved_1f1b", 4, 8, 2)[0])
    {0: 8, 4: 4}
    """
    now: Counter[int] = Counter()
    peaks: dict[int, int] = {}
    for kind, stage, _ in actions:
        now[stage] += {"F": 1, "I": 0, "B": -1, "W": -1}[kind]
        peaks[stage] = max(peaks.get(stage, 0), now[stage])
    return dict(sorted(peaks.items()))


class Full(NamedTuple):
    """A moment at which a rank may hold most: behind an F, or in another action, whose microbatch is still held.

    Attributes
    ----------
    in_flight, begun
        By stage: how many microbatches it holds activations of, and how many have been through its forward.
    graded, over
        The stages that have gradients by then, of microbatches before; and of those the ones that will get no more.
    behind
        The stages of which the last thing was a backward, not a forward.
    """

    kind: Kind
    stage: int
    in_flight: Mapping[int, int]
    begun: Mapping[int, int]
    graded: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()

    def holds(self, other: Full) -> bool:
        """Whether it has as many of each stage, or more, and all gradients."""
        return (
            other.graded <= self.graded
            and self.over <= other.over
            and all(
                number <= self.in_flight.get(stage, 0) and other.begun[stage] <= self.begun.get(stage, 0)
                for stage, number in other.in_flight.items()
            )
        )


def backwards(actions: Sequence[Action]) -> dict[int, tuple[int, int]]:
    """Stage -> the places of the first and of the last action of its backwards."""
    places = [(at, stage) for at, (kind, stage, _) in enumerate(actions) if kind != "F"]
    begin, end = {stage: at for at, stage in reversed(places)}, {stage: at for at, stage in places}
    return {stage: (begin[stage], at) for stage, at in end.items()}


def behind_forwards(actions: Iterable[Action]) -> dict[int, int]:
    """Stage -> how many of its actions are its first or follow a forward of it, and not a backward.

    >>> from clusterbench.formulas.schedules import order
    >>> behind_forwards(order("1f1b", 2, 9, 1)[0])
    {0: 10}
    """
    before: dict[int, Kind] = {}
    number: Counter[int] = Counter()
    for kind, stage, _ in actions:
        number[stage] += before.get(stage, "F") == "F"
        before[stage] = kind
    return dict(number)


def fullest_moments(actions: Sequence[Action]) -> tuple[Full, ...]:
    """Every moment at which a rank may hold most, whatever its stages hold of a microbatch.

    Of those with the same in flight it is the last: most have been through forward by then.

    >>> from clusterbench.formulas.schedules import order
    >>> [(at.kind, at.in_flight) for at in fullest_moments(order("1f1b", 2, 9, 1)[0])]
    [('F', {0: 2}), ('B', {0: 2})]
    """
    moments = {
        (at.kind, at.stage, at.graded, at.over, at.behind, *at.in_flight.items()): at for at in _moments(actions)
    }
    return tuple(_fullest(moments.values()))


def last_moments(actions: Sequence[Action]) -> tuple[Full, ...]:
    """The moment of the last backward of each stage, its microbatch still held."""
    return tuple({at.stage: at for at in _moments(actions) if at.kind != "F"}.values())


def _moments(actions: Sequence[Action]) -> Iterator[Full]:
    """One for each action: behind an F, or in another."""
    now: Counter[int] = Counter()
    begun: Counter[int] = Counter()
    graded, over, behind = frozenset[int](), frozenset[int](), frozenset[int]()
    ends = {last for _, last in backwards(actions).values()}
    for at, (kind, stage, _) in enumerate(actions):
        if kind == "F":
            now[stage] += 1
            begun[stage] += 1
        yield Full(kind, stage, dict(now), dict(begun), graded, over, behind)
        behind = behind - {stage} if kind == "F" else behind | {stage}
        if kind in "BW":
            now[stage] -= 1
            graded |= {stage}
        if at in ends:
            over |= {stage}


def _fullest(moments: Iterable[Full]) -> list[Full]:
    """Those beside which no other of the same kind and stage holds as much of every stage."""
    fullest: defaultdict[tuple[Kind, int], list[Full]] = defaultdict(list)
    for moment in sorted(
        moments, key=lambda at: (-sum(at.in_flight.values()) - sum(at.begun.values()), -len(at.graded))
    ):
        others = fullest[moment.kind, moment.stage]
        if not any(other.holds(moment) for other in others):
            others.append(moment)
    return [moment for others in fullest.values() for moment in others]


@dataclass(frozen=True)
class RankOrder:
    """What one rank computes, in order, and what follows from it: worked out once, for all jobs of the same schedule.

    Of many microbatches nothing is written down before :attr:`actions` is asked for. Behind the warm-up a schedule
    repeats itself, so that each number of it lies on a line with those of two short orders.
    """

    schedule: str
    num_ranks: int
    num_microbatches: int
    chunks: int
    rank: int

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        sizes = self.num_ranks, self.num_microbatches, self.chunks
        return tuple(schedule_named(self.schedule).rank_order(self.rank, *sizes))

    @cached_property
    def in_flight(self) -> Mapping[int, int]:
        """See :func:`in_flight`."""
        return self._figure(in_flight, lambda short: short.in_flight)

    @cached_property
    def backwards(self) -> Mapping[int, tuple[int, int]]:
        """See :func:`backwards`."""
        return self._figure(backwards, lambda short: short.backwards)

    @cached_property
    def behind_forwards(self) -> Mapping[int, int]:
        """See :func:`behind_forwards`."""
        return self._figure(behind_forwards, lambda short: short.behind_forwards)

    @cached_property
    def full(self) -> Sequence[Full]:
        """See :func:`fullest_moments`."""
        return self._figure(fullest_moments, lambda short: short.full)

    @cached_property
    def ends(self) -> Sequence[Full]:
        """See :func:`last_moments`."""
        return self._figure(last_moments, lambda short: short.ends)

    def _figure(self, count: Callable[[Sequence[Action]], _T], of: Callable[[RankOrder], _T]) -> _T:
        if self._short is None:
            return count(self.actions)
        first, second, rounds = self._short
        return cast(_T, _on_a_line(of(first), of(second), rounds))

    @cached_property
    def _short(self) -> tuple[RankOrder, RankOrder, int] | None:
        """Two orders that differ in one round, and how many rounds longer than the first this one is; None if short."""
        is_in_rounds = self.schedule.startswith("interleaved")
        size = round_size(self.num_ranks, self.num_microbatches) if is_in_rounds else 1
        rounds = (self.num_microbatches - _STEADY * self.num_ranks) // size
        if rounds <= 1:
            return None
        least = self.num_microbatches - rounds * size
        first, second = (
            rank_order(self.schedule, self.num_ranks, number, self.chunks, self.rank)
            for number in (least, least + size)
        )
        return first, second, rounds


_STEADY = 3
"""Times as many microbatches as ranks with which each schedule has come to repeat itself."""


@cache
def rank_order(schedule: str, num_ranks: int, num_microbatches: int, chunks: int, rank: int) -> RankOrder:
    """That of one rank.

    Raises ValueError with the :func:`objection`, if there is one.
    """
    if refused := objection(schedule, num_ranks, num_microbatches, chunks):
        raise ValueError(refused)
    return RankOrder(schedule, num_ranks, num_microbatches, chunks, rank)


def _on_a_line(first: Any, second: Any, steps: int) -> Any:
    """Each number within as many steps from the first as the second is one step from it.

    >>> _on_a_line({0: (5, 7)}, {0: (5, 8)}, 10)
    {0: (5, 17)}
    """
    if isinstance(first, int):
        return first + steps * (second - first)
    if isinstance(first, Mapping):
        return {key: _on_a_line(value, second[key], steps) for key, value in first.items()}
    if isinstance(first, Full):
        return Full(*_on_a_line(tuple(first), tuple(second), steps))
    if isinstance(first, tuple):
        return tuple(_on_a_line(*pair, steps) for pair in zip(first, second, strict=True))
    return first
