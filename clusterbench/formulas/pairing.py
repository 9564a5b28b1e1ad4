"""Pairs to measure, in rounds, and what a matrix of pairs shows: a slow node, a slow link, a slow block.

A *unit* is what is paired: a node, a rank or a GPU, by its number. A *link* is an unordered pair of units, a *cell* one
of its two directions, (from, to). All pairs of one *round* are disjoint, so they may be measured at once: no unit
is in two measurements at a time.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

Pair = tuple[int, int]
Round = tuple[Pair, ...]

MOST_IN_FULL = 16
"""Units of which all pairs are measured; of more, halves against each other and some random partners of each."""

FEWEST_PEERS = 4
MADS = 3 * 1.4826
SMALLEST_EFFECT = 0.10
"""A figure is low when it is below the median by more than 3 scaled median absolute deviations and by more than 10 %,
among four peers or more. One bad partner moves no median. Source: Megatron-LM pull request 4662 (10 %), with the factor
1.4826 that makes the deviation that of a normal distribution."""

BLOCK_EFFECT = 0.25
"""Links between blocks are at least so much slower than three quarters of the links are."""


# Pairs to measure


def tournament(count: int) -> list[Round]:
    """Every pair of ``count`` units exactly once, in as few rounds as there can be: n - 1, or n where n is odd.

    The circle method: one unit stays, the others move round it; where n is odd, the unit without a partner rests.

    >>> tournament(4)
    [((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3))]
    >>> len(tournament(5)), tournament(1)
    (5, [])
    """
    if count < 2:
        return []
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        met = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append(tuple(sorted((min(a, b), max(a, b)) for a, b in met if a is not None and b is not None)))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def bisection(count: int) -> Round:
    """Each unit of the first half with its like in the second: what crosses the middle of the fabric, all at once.

    >>> bisection(6), bisection(5)
    (((0, 3), (1, 4), (2, 5)), ((0, 2), (1, 3)))
    """
    half = count // 2
    return tuple((unit, unit + half) for unit in range(half))


def random_rounds(count: int, num_rounds: int, seed: int) -> list[Round]:
    """Rounds in which each unit meets another partner every time, the same for the same seed on every machine.

    Rounds of a tournament of shuffled units: no pair comes twice. Where ``count`` is odd one unit rests in each round.

    >>> met = [pair for pairs in random_rounds(20, 3, seed=1) for pair in pairs]
    >>> len(met), len(set(met))
    (30, 30)
    """
    draw = random.Random(seed)
    shuffled = list(range(count))
    draw.shuffle(shuffled)
    rounds = tournament(count)
    chosen = draw.sample(rounds, min(num_rounds, len(rounds)))
    return [tuple(sorted(_ordered(shuffled[a], shuffled[b]) for a, b in pairs)) for pairs in chosen]


def rounds_of(count: int, partners: int, seed: int) -> list[Round]:
    """Rounds of pairs, none of them twice, for ``count`` units.

    All pairs up to ``MOST_IN_FULL`` units; beyond, the bisection and ``partners`` random partners of each.

    >>> sum(map(len, rounds_of(16, partners=8, seed=0))), sum(map(len, rounds_of(64, partners=8, seed=0))) <= 32 * 9
    (120, True)
    """
    if count <= MOST_IN_FULL:
        return tournament(count)
    first = bisection(count)
    crossed = set(first)
    rest = (tuple(pair for pair in pairs if pair not in crossed) for pairs in random_rounds(count, partners, seed))
    return [first, *(pairs for pairs in rest if pairs)]


def second_pass(faults: Iterable[Slow], cells: Mapping[Pair, float], partners: int = 2) -> list[Round]:
    """What is measured again: each suspected node with units that proved good, and each suspected link.

    Proven are units that are part of no fault, those with the highest medians first. A node that is slow with them,
    too, is slow itself.
    """
    faults = tuple(faults)
    suspects = [fault.units[0] for fault in faults if fault.kind == "node"]
    blamed = {unit for fault in faults for unit in fault.units}
    medians = _medians(_links(cells))
    proven = sorted(medians.keys() - blamed, key=lambda unit: (-medians[unit], unit))
    pairs = [_ordered(*fault.units) for fault in faults if fault.kind == "link"]
    for number, suspect in enumerate(suspects):
        of_it = {proven[(number + turn) % len(proven)] for turn in range(partners)} if proven else ()
        pairs += [_ordered(suspect, partner) for partner in sorted(of_it)]
    return disjoint(dict.fromkeys(pairs))


def disjoint(pairs: Iterable[Pair]) -> list[Round]:
    """Pairs in rounds that hold each unit at most once; each pair goes into the first round with room.

    >>> disjoint([(0, 1), (0, 2), (2, 3)])
    [((0, 1), (2, 3)), ((0, 2),)]
    """
    rounds: list[list[Pair]] = []
    for pair in pairs:
        for placed in rounds:
            if not {unit for placed_pair in placed for unit in placed_pair} & {*pair}:
                placed.append(pair)
                break
        else:
            rounds.append([pair])
    return [tuple(sorted(placed)) for placed in rounds]


def num_links(count: int) -> int:
    """Links between ``count`` units.

    >>> num_links(16)
    120
    """
    return count * (count - 1) // 2


# Faults in a matrix


@dataclass(frozen=True)
class Slow:
    """A fault in a matrix, with the measured rate and the median of its peers, in the matrix's unit.

    ``units`` are the node; the link's (from, to); or the block's members, the smaller side. ``both_ways`` says of a
    link that its other direction is slow as well.
    """

    kind: Literal["node", "link", "block"]
    units: tuple[int, ...]
    value: float
    usual: float
    both_ways: bool = False


def low_limit(values: Collection[float]) -> float:
    """Below this a value is low among its peers: see ``SMALLEST_EFFECT``.

    >>> low_limit([10.0, 10.0, 10.0, 5.0])
    9.0
    """
    usual = median(values)
    deviation = median(abs(value - usual) for value in values)
    return usual - max(MADS * deviation, SMALLEST_EFFECT * usual)


def attribute(
    cells: Mapping[Pair, float],
    best: Mapping[Pair, float] | None = None,
    again: Mapping[Pair, float] | None = None,
    host_of: Mapping[int, int] | None = None,
) -> list[Slow]:
    """Faults behind low cells: blocks of units, or else nodes (row and column), or else links (one cell).

    Parameters
    ----------
    cells
        Rates by (from, to), higher is better; pairs that were not measured are left out.
    best
        The best sample of each cell. A cell is low only if that is low as well, so that one bad moment is no fault.
    again
        Rates of the second pass. A unit or link that is good in it is no fault.
    host_of
        For units of which several share a host: which. Pairs inside a host are then compared with those of that host,
        if they are alike at all, pairs across hosts with each other, and hosts are no blocks.

    Returns
    -------
    Slow blocks alone, where there are any: repair those and measure again. Otherwise nodes, then links between the
    others. Nothing where fewer than four can be compared: of two that differ, either may be the slow one.

    Source
    ------
    Google's cluster-health-scanner for the second pass with proven partners; a low row and column is a node, one low
    cell a link, a low block a leaf or a rack.
    """
    best, again = best or cells, again or {}
    if host_of is not None:
        inside: dict[int, dict[Pair, float]] = {}
        across: dict[Pair, float] = {}
        for cell, value in cells.items():
            source, target = host_of[cell[0]], host_of[cell[1]]
            (inside.setdefault(source, {}) if source == target else across)[cell] = value
        alike = [across, *(peers for peers in inside.values() if is_uniform(peers.values()))]
        return [fault for peers in alike for fault in _slow_nodes_and_links(peers, best, again)]
    blocks = _slow_blocks(_links(cells), _links({cell: best.get(cell, value) for cell, value in cells.items()}))
    return blocks or _slow_nodes_and_links(cells, best, again)


def is_uniform(values: Collection[float]) -> bool:
    """Whether three quarters of the values are within 10 % of their median, as behind one switch.

    Inside a host links may differ by design (bridges, sockets); only where they do not, a slow one stands out.
    """
    usual = median(values)
    return sum(abs(value - usual) <= SMALLEST_EFFECT * usual for value in values) >= 0.75 * len(values)


def _slow_nodes_and_links(
    cells: Mapping[Pair, float], best: Mapping[Pair, float], again: Mapping[Pair, float]
) -> list[Slow]:
    medians = _medians(_links(cells))
    if len(medians) < FEWEST_PEERS:
        return _slow_links(cells, best, again)
    limit, usual = low_limit(medians.values()), median(medians.values())
    suspected = {unit: value for unit, value in sorted(medians.items()) if value < limit}
    links_again = _links(again)
    nodes = [
        Slow("node", (unit,), value, usual)
        for unit, value in suspected.items()
        if _is_low_again(unit, links_again, limit)
    ]
    rest = {cell: value for cell, value in cells.items() if not suspected.keys() & {*cell}}
    return [*nodes, *_slow_links(rest, best, again)]


def _slow_links(cells: Mapping[Pair, float], best: Mapping[Pair, float], again: Mapping[Pair, float]) -> list[Slow]:
    if len(cells) < FEWEST_PEERS:
        return []
    limit, usual = low_limit(cells.values()), median(cells.values())
    low = {
        cell: value
        for cell, value in sorted(cells.items())
        if value < limit and best.get(cell, value) < limit and again.get(cell, value) < limit
    }
    return [
        Slow("link", cell, min(value, low.get(cell[::-1], value)), usual, both_ways=cell[::-1] in low)
        for cell, value in low.items()
        if cell[0] < cell[1] or cell[::-1] not in low
    ]


def _slow_blocks(links: Mapping[Pair, float], best: Mapping[Pair, float]) -> list[Slow]:
    """Sides between which every link is slow while every link inside is fast; nothing where it is not that clear."""
    if len(links) < FEWEST_PEERS:
        return []
    usual = sorted(links.values())[(3 * len(links)) // 4]
    limit = (1 - BLOCK_EFFECT) * usual
    fast = [link for link, value in links.items() if value >= limit]
    sides = _components({unit for link in links for unit in link}, fast)
    if len(sides) < 2 or min(map(len, sides)) < 2:
        return []
    side_of = {unit: number for number, side in enumerate(sides) for unit in side}
    across = [link for link in links if side_of[link[0]] != side_of[link[1]]]
    inside = [link for link in links if side_of[link[0]] == side_of[link[1]]]
    met = {_ordered(side_of[a], side_of[b]) for a, b in across}
    is_clear = all(links[link] >= limit for link in inside) and all(best[link] < limit for link in across)
    if not is_clear or len(met) < num_links(len(sides)):
        return []
    fast_median = median(links[link] for link in inside)
    named = sorted(sides, key=lambda side: (-len(side), side))[1:]  # the largest side stands for the usual
    return [
        Slow("block", side, median(links[link] for link in across if {*side} & {*link}), fast_median) for side in named
    ]


def _components(units: Collection[int], links: Iterable[Pair]) -> list[tuple[int, ...]]:
    side_of = {unit: {unit} for unit in units}
    for a, b in links:
        if side_of[a] is not side_of[b]:
            side_of[a] |= side_of[b]
            for unit in side_of[b]:
                side_of[unit] = side_of[a]
    return sorted({tuple(sorted(side)) for side in side_of.values()})


def _is_low_again(unit: int, links: Mapping[Pair, float], limit: float) -> bool:
    values = [value for link, value in links.items() if unit in link]
    return not values or median(values) < limit


def _links(cells: Mapping[Pair, float]) -> dict[Pair, float]:
    """Each link at the rate of its slower direction."""
    links: dict[Pair, float] = {}
    for (source, target), value in cells.items():
        link = _ordered(source, target)
        links[link] = min(value, links.get(link, value))
    return links


def _medians(links: Mapping[Pair, float]) -> dict[int, float]:
    """Each unit's median over its partners."""
    values_of: dict[int, list[float]] = {}
    for link, value in links.items():
        for unit in link:
            values_of.setdefault(unit, []).append(value)
    return {unit: median(values) for unit, values in values_of.items()}


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
