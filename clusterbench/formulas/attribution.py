"""Where the time of a training step goes, rank by rank: computing, communicating, waiting, and the rest.

Ranks have clocks of their own, so nothing here compares moments of two ranks. What is compared are lengths: all ranks
of a group leave a collective together, so the rank that was in it for the shortest time came last, and what another was
in it for longer, it waited.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from clusterbench.formulas.intervals import Interval, merged

COMPUTE, EXPOSED, BUBBLE, IMBALANCE, REST = PARTS = (
    "compute",
    "exposed_communication",
    "bubble",
    "imbalance",
    "rest",
)
"""The parts of a step. Exposed communication has an axis as well."""

Seconds = dict[int, float]
"""By rank."""

Part = tuple[str, str]
"""One of :data:`PARTS`, and the axis where it is exposed communication."""


class Claim(NamedTuple):
    """A time in which something with a number was under way."""

    start_s: float
    end_s: float
    owner: int


class Line(NamedTuple):
    """What is carried in one order on all of its ranks: the collectives of a group, or messages one way between two.

    Attributes
    ----------
    axis
        Of the group.
    first
        Lowest global rank of the group, which tells groups of one axis apart.
    way
        Empty for collectives; ``0>1`` for messages, with ranks of the group.
    """

    axis: str
    first: int
    way: str = ""


class Carried(NamedTuple):
    """One transfer as one rank saw it: seconds in which it alone held the step up, and seconds it lasted."""

    exposed_s: float
    duration_s: float


@dataclass(frozen=True)
class RankStep:
    """One step of one rank.

    Attributes
    ----------
    place
        Of the rank in the pipeline. Ranks of one place do the same work.
    transfers
        In the order of the line, which is that of the other ranks on it.
    """

    place: int
    step_s: float
    compute_s: float
    transfers: Mapping[Line, Sequence[Carried]] = field(default_factory=dict)


def shared_out(claims: Iterable[Claim], taken: Iterable[Interval]) -> dict[int, float]:
    """Seconds by owner: each moment outside ``taken`` belongs to the claim that began last, and to no other.

    >>> shared_out([Claim(0.0, 10.0, owner=0), Claim(4.0, 6.0, owner=1)], taken=[(5.0, 7.0)])
    {0: 7.0, 1: 1.0}
    """
    claims = list(claims)
    free: dict[int, float] = dict.fromkeys(sorted({claim.owner for claim in claims}), 0.0)
    for start_s, end_s, owner in shares(claims, taken):
        free[owner] += end_s - start_s
    return free


def shares(claims: Iterable[Claim], taken: Iterable[Interval]) -> Iterator[Claim]:
    """The same as moments, in order: what of each claim lies outside ``taken`` and under no claim that began later.

    >>> for share in shares([Claim(0.0, 10.0, owner=0), Claim(4.0, 6.0, owner=1)], taken=[(5.0, 7.0)]):
    ...     print(*share)
    0.0 4.0 0
    4.0 5.0 1
    7.0 10.0 0
    """
    waiting = sorted(claims)
    busy, at = merged(taken), 0
    moments = sorted({moment for start, end, _ in waiting for moment in (start, end)})
    under_way: list[tuple[float, float, int]] = []  # the one that began last on top
    position = 0
    for start, end in pairwise(moments):
        while position < len(waiting) and waiting[position].start_s <= start:
            claim = waiting[position]
            heapq.heappush(under_way, (-claim.start_s, claim.end_s, claim.owner))
            position += 1
        while under_way and under_way[0][1] <= start:
            heapq.heappop(under_way)
        if not under_way:
            continue
        while at < len(busy) and busy[at][1] <= start:
            at += 1
        free_from, near = start, at
        while near < len(busy) and busy[near][0] < end:
            if busy[near][0] > free_from:
                yield Claim(free_from, busy[near][0], under_way[0][2])
            free_from = busy[near][1]
            near += 1
        if free_from < end:
            yield Claim(free_from, end, under_way[0][2])


def attribute(ranks: Sequence[RankStep]) -> list[dict[Part, float]]:
    """The step of each rank taken apart, in seconds; the parts of a rank sum to its step.

    - ``exposed_communication`` of an axis: of each transfer what showed, but no longer than it lasted on the rank that
      was in it for the shortest time. That rank came last and did not wait.
    - ``bubble``: what a transfer between pipeline stages showed beyond that, i.e. waiting for another stage.
    - ``imbalance``: the same of a transfer among ranks of one stage, i.e. waiting for a rank with the same work. And
      whatever a rank computes, idles or waits for other stages longer than the quickest of its stage: the slow rank's
      own time beside the others' waiting, so that the whole delay of one slow rank is here, on every rank.
    - ``compute``: work a stage has more than another is work, and stays here; what others wait for it is bubble.
    - ``rest``: neither computing nor communicating: Python, the host, launches. Where a stage has more of it than the
      stage with the least, the others have to wait: that is bubble too.

    Raises
    ------
    ValueError
        If a rank's parts take longer than its step.

    Notes
    -----
    A transfer whose other ranks left no record, or another number of transfers, is taken as it was seen: exposed. The
    root of a broadcast may leave it early; what the others are in it for longer counts as waiting, too.

    Source: HTA (facebookresearch/HolisticTraceAnalysis) on stragglers: the late rank's collective is the shortest.

    Examples
    --------
    The second rank idles for 3 s and then joins an all-reduce of 1 s, for which the first has waited:

    >>> dp = Line("dp", 0)
    >>> for parts in attribute([
    ...     RankStep(0, step_s=6.0, compute_s=2.0, transfers={dp: [Carried(4.0, 4.0)]}),
    ...     RankStep(0, step_s=6.0, compute_s=2.0, transfers={dp: [Carried(1.0, 1.0)]}),
    ... ]):
    ...     print(parts[COMPUTE, ""], parts[EXPOSED, "dp"], parts[IMBALANCE, ""], parts[REST, ""])
    2.0 1.0 3.0 0.0
    2.0 1.0 3.0 0.0
    """
    parts = [_own_time(rank) for rank in ranks]
    for line, members in _members(ranks).items():
        _split(line, {rank: ranks[rank].transfers[line] for rank in members}, ranks, parts)
    by_place: dict[int, list[dict[Part, float]]] = defaultdict(list)
    for rank, of_rank in zip(ranks, parts, strict=True):
        by_place[rank.place].append(of_rank)
    for same_work in by_place.values():
        _level(same_work)
    least_rest = min((of_rank[REST, ""] for of_rank in parts), default=0.0)
    if len(by_place) > 1:
        for same_work in by_place.values():
            more = min(of_rank[REST, ""] for of_rank in same_work) - least_rest
            for of_rank in same_work:
                of_rank[REST, ""] -= more
                of_rank[BUBBLE, ""] += more
    return parts


def waited_for(ranks: Sequence[RankStep]) -> list[float]:
    """Seconds that ranks with the same work spent in exposed waiting, for each rank that held them up.

    That is the last to come to a transfer. What it had itself waited for other stages longer than the rank of its stage
    that waited least was not its doing: so much counts for the ranks that it waited for, and so on up the pipeline.

    >>> late, early = [Carried(1.0, 1.0)], [Carried(4.0, 4.0)]
    >>> waited_for([RankStep(0, 6.0, 2.0, {Line("dp", 0): late}), RankStep(0, 6.0, 2.0, {Line("dp", 0): early})])
    [3.0, 0.0]
    """
    peers: list[Seconds] = [defaultdict(float) for _ in ranks]  # what each was waited for, by the rank that waited
    stages: list[Seconds] = [defaultdict(float) for _ in ranks]  # what each waited for other stages, by whom it was for
    for line, members in _members(ranks).items():
        same_work = len({ranks[rank].place for rank in members}) == 1
        for rank, last, waiting_s in _waits(members, [ranks[rank].transfers[line] for rank in members]):
            if same_work:
                peers[last][rank] += waiting_s
            else:
                stages[rank][last] += waiting_s
    return _passed_on(peers, stages, [rank.place for rank in ranks])


def _waits(members: Sequence[int], transfers_of: Sequence[Sequence[Carried]]) -> Iterator[tuple[int, int, float]]:
    """``(rank, last to come, seconds of exposed waiting for it)`` of every transfer of one line."""
    if not _is_comparable(transfers_of):
        return
    for together in zip(*transfers_of, strict=True):
        last = min(range(len(together)), key=lambda place: together[place].duration_s)
        for rank, transfer in zip(members, together, strict=True):
            yield rank, members[last], max(0.0, transfer.exposed_s - together[last].duration_s)


def _passed_on(peers: Sequence[Seconds], stages: Sequence[Seconds], places: Sequence[int]) -> list[float]:
    """Seconds for which ranks were waited for; each rank's share that was not its doing at those it waited for."""
    waits = [sum(by_rank.values()) for by_rank in stages]
    least = {place: min(wait for wait, at in zip(waits, places, strict=True) if at == place) for place in places}
    seconds, arrived = [0.0] * len(peers), [sum(by_rank.values()) for by_rank in peers]
    for _ in least:
        passed = [0.0] * len(peers)
        for rank, arrived_s in enumerate(arrived):
            beyond_s, late_s = waits[rank] - least[places[rank]], max(peers[rank].values(), default=0.0)
            share = beyond_s / max(beyond_s, late_s) if beyond_s else 0.0
            seconds[rank] += (1 - share) * arrived_s
            for other, waiting_s in stages[rank].items() if share else ():
                passed[other] += share * arrived_s * waiting_s / waits[rank]
        arrived = passed
    return [kept + last for kept, last in zip(seconds, arrived, strict=True)]


def mean_share(parts: Sequence[Mapping[Part, float]]) -> dict[Part, tuple[float, float, float]]:
    """Each part's share of the step, as (mean rank, smallest, largest); the means sum to 1.

    >>> mean_share([{("compute", ""): 3.0, ("rest", ""): 1.0}, {("compute", ""): 1.0, ("rest", ""): 1.0}])
    {('compute', ''): (0.625, 0.5, 0.75), ('rest', ''): (0.375, 0.25, 0.5)}
    """
    totals = [sum(of_rank.values()) for of_rank in parts]
    shares = {
        part: [of_rank.get(part, 0.0) / total for of_rank, total in zip(parts, totals, strict=True)]
        for part in dict.fromkeys(part for of_rank in parts for part in of_rank)
    }
    return {part: (sum(values) / len(values), min(values), max(values)) for part, values in shares.items()}


def loss_by_part(parts: Mapping[Part, float], smallest: Mapping[Part, float], work_ratio: float) -> dict[Part, float]:
    """Seconds of a step that the smallest run's step, scaled to the work of one rank, does not have, by part.

    They sum to the step time less the ideal one, ``work_ratio`` times that of the smallest run. A part of which the
    larger run has less is negative.

    Parameters
    ----------
    parts, smallest
        Seconds of each part of a step.
    work_ratio
        Work of one rank over that of one rank of the smallest run: 1 for weak scaling, 1 / n for strong scaling to n
        times the ranks.

    Examples
    --------
    One rank computes for 8 s; four compute for 2.5 s each and communicate for 1 s:

    >>> loss_by_part({("compute", ""): 2.5, ("exposed_communication", "tp"): 1.0}, {("compute", ""): 8.0}, 1 / 4)
    {('compute', ''): 0.5, ('exposed_communication', 'tp'): 1.0}
    """
    parts_of_both = dict.fromkeys([*parts, *smallest])
    return {part: parts.get(part, 0.0) - work_ratio * smallest.get(part, 0.0) for part in parts_of_both}


def _own_time(rank: RankStep) -> dict[Part, float]:
    exposed_s = sum(transfer.exposed_s for transfers in rank.transfers.values() for transfer in transfers)
    rest_s = rank.step_s - rank.compute_s - exposed_s
    if rest_s < -0.01 * rank.step_s:
        raise ValueError(
            f"a rank computed for {rank.compute_s:g} s and communicated for {exposed_s:g} s in a step of "
            f"{rank.step_s:g} s"
        )
    # Rounding must not turn a step that is full into one with less than nothing beside.
    parts = {(COMPUTE, ""): rank.compute_s, (BUBBLE, ""): 0.0, (IMBALANCE, ""): 0.0, (REST, ""): max(0.0, rest_s)}
    return parts | {(EXPOSED, line.axis): 0.0 for line in rank.transfers}


def _members(ranks: Sequence[RankStep]) -> dict[Line, list[int]]:
    members: dict[Line, list[int]] = defaultdict(list)
    for number, rank in enumerate(ranks):
        for line in rank.transfers:
            members[line].append(number)
    return members


def _split(
    line: Line,
    transfers_of: Mapping[int, Sequence[Carried]],
    ranks: Sequence[RankStep],
    parts: Sequence[dict[Part, float]],
) -> None:
    """Adds what each rank saw of one line: what was waiting to its part, the rest to exposed communication."""
    waited = IMBALANCE if len({ranks[rank].place for rank in transfers_of}) == 1 else BUBBLE
    comparable = _is_comparable(transfers_of.values())
    shortest = [
        min(transfer.duration_s for transfer in together) for together in zip(*transfers_of.values(), strict=comparable)
    ]
    for rank, transfers in transfers_of.items():
        exposed_s = sum(transfer.exposed_s for transfer in transfers)
        moving_s = exposed_s
        if comparable:
            moving_s = sum(min(transfer.exposed_s, least) for transfer, least in zip(transfers, shortest, strict=True))
        parts[rank][EXPOSED, line.axis] += moving_s
        parts[rank][waited, ""] += exposed_s - moving_s


def _is_comparable(transfers_of: Collection[Sequence[Carried]]) -> bool:
    return len(transfers_of) > 1 and len({len(transfers) for transfers in transfers_of}) == 1


def _level(same_work: Sequence[dict[Part, float]]) -> None:
    """What a rank has more than the quickest rank with the same work becomes imbalance."""
    owned = [(kind, "") for kind in (COMPUTE, REST, BUBBLE)]

    def total(parts: Mapping[Part, float]) -> float:
        return sum(parts[part] for part in owned)

    quickest = min(same_work, key=total).copy()
    for parts in same_work:
        more_s = total(parts) - total(quickest)
        beyond = {part: max(0.0, parts[part] - quickest[part]) for part in owned}
        all_beyond = sum(beyond.values())
        for part in owned if all_beyond > 0 else ():
            # in proportion: of a rank that computes longer and idles less only the difference is a delay
            parts[part] -= more_s * beyond[part] / all_beyond
        parts[IMBALANCE, ""] += more_s if all_beyond > 0 else 0.0
