"""What a matrix of pairs shows: a slow node, a slow link, a slow rail or block; and which pairs to measure again.

Units, links and cells are those of :mod:`clusterbench.formulas.pairing`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_high
from typing import Literal

from clusterbench.formulas.pairing import Pair, Round, bisection, disjoint, num_links, ordered
from clusterbench.formulas.student_t import quantile

FEWEST_PEERS = 4
MAD = 1.4826
SMALLEST_EFFECT = 0.10
LEVEL = 0.001
"""A figure is low when it is below the median by more than 10 % and by more scaled median absolute deviations than
chance gives any of its peers once in a thousand matrices, at least three, among four peers or more. One bad partner
moves no median. Source: Megatron-LM pull request 4662 (10 %, three), with the factor 1.4826 that makes the deviation
that of a normal distribution; of few peers the deviation itself is uncertain, hence Student's t."""

GAP = 0.25
"""Where the cells that are left differ by noise, all of a slow unit are at least so much below every other cell."""

FEWEST_BY_ORDER = 4
"""Units from which on the order of the cells alone says enough: of four, all six of one are the lowest of twelve by
chance once in 231 matrices, and a gap between them and the others is rarer still."""

WOULD_SHOW = 0.25
"""Health is said only where a link that carries so much less than the others would have been named."""

MOST_LOW = 0.75
"""The part of its links that is low where a rail, or a rank in its rail, is the slow one and not single links."""

MOST_SINGLE = 1 / 3
"""The part of all links that may be low each by itself, with no unit, rail or block behind them: more are noise."""

BLOCK_EFFECT = 0.25
"""Links between blocks are at least so much slower than three quarters of the links are."""


def second_pass(
    faults: Iterable[Slow],
    cells: Mapping[Pair, float],
    partners: int = 2,
    rail_of: Mapping[int, int] | None = None,
) -> list[Round]:
    """What is measured again: each suspected node with units that proved good, each suspected link, half of a rail.

    Proven are units that are part of no fault, those with the highest medians first, of its rail where units have one.
    A node that is slow with them, too, is slow itself.
    """
    faults = tuple(faults)
    suspects = [unit for fault in faults if fault.kind == "node" for unit in fault.units]
    blamed = {unit for fault in faults for unit in fault.units}
    medians = _medians(_links(cells))
    proven = sorted(medians.keys() - blamed, key=lambda unit: (-medians[unit], unit))
    pairs = [ordered(*fault.units) for fault in faults if fault.kind == "link"]
    for fault in faults:
        if fault.kind == "rail":
            pairs += [ordered(fault.units[a], fault.units[b]) for a, b in bisection(len(fault.units))]
    for number, suspect in enumerate(suspects):
        like_it = [unit for unit in proven if rail_of is None or rail_of[unit] == rail_of[suspect]]
        of_it = {like_it[(number + turn) % len(like_it)] for turn in range(partners)} if like_it else ()
        pairs += [ordered(suspect, partner) for partner in sorted(of_it)]
    return disjoint(dict.fromkeys(pairs))


@dataclass(frozen=True)
class Slow:
    """A fault in a matrix, with the measured rate and the median of its peers, in the matrix's unit.

    ``units`` are the node, all its ranks where it is slow in most rails; the link's (from, to), or one such pair after
    the other where all links between two hosts are; the block's members, the smaller side; or those of a rail.
    ``both_ways`` says of links that their other direction is slow as well.
    """

    kind: Literal["node", "link", "links", "block", "rail"]
    units: tuple[int, ...]
    value: float
    usual: float
    both_ways: bool = False

    def has(self, source: int, target: int) -> bool:
        """Whether a cell is one of those that the fault makes low.

        >>> [Slow("links", (0, 2, 1, 3), 5.0, 10.0).has(*cell) for cell in ((1, 3), (3, 1), (0, 3))]
        [True, False, False]
        """
        if self.kind in ("link", "links"):
            ways = [(source, target), (target, source)] if self.both_ways else [(source, target)]
            return any(pair in ways for pair in zip(self.units[::2], self.units[1::2], strict=True))
        if self.kind == "block":
            return (source in self.units) != (target in self.units)
        return source in self.units or target in self.units


def low_limit(values: Collection[float]) -> float:
    """Below this a value is low among its peers: see ``SMALLEST_EFFECT``.

    >>> low_limit([10.0, 10.0, 10.0, 5.0])
    9.0
    """
    usual = median(values)
    deviation = median(abs(value - usual) for value in values)
    most = max(3.0, quantile(LEVEL / len(values), max(4, len(values) - 1)))
    return usual - max(most * MAD * deviation, SMALLEST_EFFECT * usual)


def attribute(
    cells: Mapping[Pair, float],
    best: Mapping[Pair, float] | None = None,
    again: Mapping[Pair, float] | None = None,
    host_of: Mapping[int, int] | None = None,
    rail_of: Mapping[int, int] | None = None,
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
    rail_of
        Beside ``host_of``, for units that are paired with their like of other hosts only: their place there. Rails are
        held against each other; one with most links low is one fault, and so is a host that is slow in most of them.

    Returns
    -------
    Slow blocks alone, where there are any: repair those and measure again. Otherwise nodes, then links between the
    others; where links are not alike, the one unit without which they are. Nothing for two units: of two directions
    that differ, either may be the slow one. Nothing for three of one host, whose links may differ by design: two of
    three GPUs are often joined by a bridge.

    Source
    ------
    Google's cluster-health-scanner for the second pass with proven partners; a low row and column is a node, one low
    cell a link, a low block a leaf or a rack.
    """
    best, again = best or cells, again or {}
    if rail_of is not None:
        assert host_of is not None
        return _slow_in_rails(cells, best, again, rail_of, host_of)
    if host_of is not None:
        inside: dict[int, dict[Pair, float]] = {}
        across: dict[Pair, float] = {}
        for cell, value in cells.items():
            source, target = host_of[cell[0]], host_of[cell[1]]
            (inside.setdefault(source, {}) if source == target else across)[cell] = value
        faults = _slow_nodes_and_links(across, best, again)
        for peers in inside.values():
            alike = is_uniform(peers.values())
            faults += _slow_nodes_and_links(peers, best, again) if alike else _only_unlike(peers, best, again, 4)
        return faults
    blocks = _slow_blocks(_links(cells), _links({cell: best.get(cell, value) for cell, value in cells.items()}))
    return blocks or _slow_nodes_and_links(cells, best, again) or _only_unlike(cells, best, again, 3)


def between_hosts(faults: Sequence[Slow], cells: Collection[Pair], host_of: Mapping[int, int]) -> list[Slow]:
    """The same faults, with slow links as one where they are all that were measured between two hosts.

    >>> both = [Slow("link", (0, 2), 5.0, 10.0), Slow("link", (1, 3), 6.0, 10.0)]
    >>> between_hosts(both, [(0, 2), (1, 3), (0, 4)], {0: 0, 1: 0, 2: 1, 3: 1, 4: 2})
    [Slow(kind='links', units=(0, 2, 1, 3), value=5.5, usual=10.0, both_ways=False)]
    """

    def way(pair: Sequence[int]) -> Pair:
        return host_of[pair[0]], host_of[pair[1]]

    links: dict[tuple[Pair, bool], list[Slow]] = {}
    for fault in faults:
        if fault.kind == "link":
            links.setdefault((way(fault.units), fault.both_ways), []).append(fault)
    measured = Counter(map(way, cells))
    whole = {
        key: own
        for key, own in links.items()
        if len(own) > 1 and key[0][0] != key[0][1] and len(own) == measured[key[0]]
    }
    joined = [
        Slow(
            "links",
            tuple(unit for fault in own for unit in fault.units),
            median(fault.value for fault in own),
            own[0].usual,
            both_ways,
        )
        for (_, both_ways), own in whole.items()
    ]
    single = {fault for own in whole.values() for fault in own}
    return [*joined, *(fault for fault in faults if fault not in single)]


@dataclass(frozen=True)
class Spread:
    """How far cells that were compared with each other are apart, and whether a slow one would have been named.

    Attributes
    ----------
    units
        Those between which the cells are.
    low, high
        The slowest and the fastest cell.
    would_show
        By which fraction a link has to carry less than the median to be named; None where it has no peers, or where
        cells differ too much for any to stand out.
    """

    units: tuple[int, ...]
    low: float
    high: float
    would_show: float | None

    @property
    def is_judged(self) -> bool:
        return self.would_show is not None and self.would_show <= WOULD_SHOW


def spreads(cells: Mapping[Pair, float], host_of: Mapping[int, int] | None = None) -> list[Spread]:
    """The cells of :func:`attribute` in the groups in which they are compared."""
    groups: dict[int | None, dict[Pair, float]] = {}
    for cell, value in cells.items():
        hosts = {host_of[unit] for unit in cell} if host_of is not None else set()
        groups.setdefault(hosts.pop() if len(hosts) == 1 else None, {})[cell] = value
    return [_spread(peers, is_inside=host is not None) for host, peers in groups.items()]


def _spread(cells: Mapping[Pair, float], is_inside: bool) -> Spread:
    values, units = cells.values(), tuple(sorted({unit for cell in cells for unit in cell}))
    would_show = None
    if len(values) >= FEWEST_PEERS and (is_uniform(values) or not is_inside) and _are_few_low(cells):
        # two of four units are in five sixths of all cells, one of three in two thirds: the fast ones are the usual
        fast = max(values) if len(units) <= FEWEST_BY_ORDER else sorted(values)[(3 * len(values)) // 4]
        usual = median(values)
        would_show = 1 - low_limit(values) / (fast if fast > (1 + SMALLEST_EFFECT) * usual else usual)
    return Spread(units, min(values), max(values), would_show)


def _only_unlike(
    cells: Mapping[Pair, float], best: Mapping[Pair, float], again: Mapping[Pair, float], fewest: int
) -> list[Slow]:
    """The unit without which all cells are alike, or at least all above its own, among ``fewest`` units or more.

    Of few units one spoils so many cells that no median stands for the others: six of twelve where there are four.
    """
    units = {unit for cell in cells for unit in cell}
    if len(units) < fewest:
        return []
    found = []
    for suspect in sorted(units):
        own = [cell for cell in cells if suspect in cell]
        rest = [value for cell, value in cells.items() if suspect not in cell]
        if len(rest) < 2 or len(own) < 2:
            continue
        limit = (1 - (SMALLEST_EFFECT if is_uniform(rest) and len(rest) >= FEWEST_PEERS else GAP)) * min(rest)
        # Of three units the order of six cells says little, so that the best samples have to be low as well.
        seen = cells if len(units) >= FEWEST_BY_ORDER else best
        is_low = all(cells[cell] < limit and seen.get(cell, cells[cell]) < limit for cell in own)
        if is_low and _is_low_again((suspect,), _links(again), limit):
            links = _links({cell: cells[cell] for cell in own})
            found.append(Slow("node", (suspect,), median(links.values()), median(rest)))
    return found if len(found) == 1 else []


def is_uniform(values: Collection[float]) -> bool:
    """Whether three quarters of the values are within 10 % of their median, as behind one switch.

    Inside a host links may differ by design (bridges, sockets); only where they do not, a slow one stands out.
    """
    usual = median(values)
    return sum(abs(value - usual) <= SMALLEST_EFFECT * usual for value in values) >= 0.75 * len(values)


def _slow_nodes_and_links(
    cells: Mapping[Pair, float], best: Mapping[Pair, float], again: Mapping[Pair, float]
) -> list[Slow]:
    links = _links(cells)
    medians = _medians(links)
    if len(medians) < FEWEST_PEERS:
        return _slow_links(cells, best, again)
    limit, usual = low_limit(medians.values()), median(medians.values())
    suspected = {unit: value for unit, value in sorted(medians.items()) if value < limit}
    rest = {cell: value for cell, value in cells.items() if not suspected.keys() & {*cell}}
    limit = min(limit, usual - _chance(rest.values(), len(medians), 2 * len(links) / len(medians)))
    suspected = {unit: value for unit, value in suspected.items() if value < limit}
    links_again = _links(again)
    nodes = [
        Slow("node", (unit,), value, usual)
        for unit, value in suspected.items()
        if _is_low_again((unit,), links_again, limit)
    ]
    rest = {cell: value for cell, value in cells.items() if not suspected.keys() & {*cell}}
    return [*nodes, *_slow_links(rest, best, again)] if _are_few_low(rest) else []


def _chance(rest: Collection[float], count: int, links: float) -> float:
    """How far the lowest of ``count`` medians may be off where cells differ as those do that belong to no suspect.

    Each median is of so many ``links``; that of normal samples has 1.25 times the deviation of their mean.
    """
    if len(rest) < 2:
        return 0.0
    middle = median(rest)
    deviation = MAD * median(abs(value - middle) for value in rest)
    return quantile(LEVEL / count, max(4, len(rest) - 1)) * 1.25 * deviation / math.sqrt(links)


def _slow_in_rails(
    cells: Mapping[Pair, float],
    best: Mapping[Pair, float],
    again: Mapping[Pair, float],
    rail_of: Mapping[int, int],
    host_of: Mapping[int, int],
) -> list[Slow]:
    """Hosts that are slow in most rails, or else rails, ranks and links that are."""
    hosts = _slow_hosts(cells, best, again, host_of) if len({*rail_of.values()}) > 1 else []
    blamed = {unit for fault in hosts for unit in fault.units}
    rest = {cell: value for cell, value in cells.items() if not blamed & {*cell}}
    return [*hosts, *_slow_among_rails(rest, best, again, rail_of)]


def _slow_hosts(
    cells: Mapping[Pair, float],
    best: Mapping[Pair, float],
    again: Mapping[Pair, float],
    host_of: Mapping[int, int],
) -> list[Slow]:
    """Nodes and blocks of the matrix of hosts, in which a cell is the median of its rails; of two the faster."""

    def of_hosts(of_ranks: Mapping[Pair, float]) -> dict[Pair, float]:
        rails: dict[Pair, list[float]] = {}
        for (source, target), value in of_ranks.items():
            rails.setdefault((host_of[source], host_of[target]), []).append(value)
        return {pair: median_high(values) for pair, values in rails.items()}

    faults = attribute(
        of_hosts(cells), of_hosts({cell: best.get(cell, cells[cell]) for cell in cells}), of_hosts(again)
    )
    ranks = {fault: tuple(unit for unit, host in sorted(host_of.items()) if host in fault.units) for fault in faults}
    return [replace(fault, units=ranks[fault]) for fault in faults if fault.kind != "link"]


def _slow_among_rails(
    cells: Mapping[Pair, float], best: Mapping[Pair, float], again: Mapping[Pair, float], rail_of: Mapping[int, int]
) -> list[Slow]:
    if len(cells) < FEWEST_PEERS:
        return []
    limit, usual = low_limit(cells.values()), median(cells.values())
    links, links_again = _links(cells), _links(again)
    rails: dict[int, list[Pair]] = {}
    for link in links:
        rails.setdefault(rail_of[link[0]], []).append(link)
    if limit < (1 - WOULD_SHOW) * usual:  # rails are not alike
        own = [{cell: value for cell, value in cells.items() if rail_of[cell[0]] == rail} for rail in rails]
        return [fault for of_rail in own for fault in attribute(of_rail, best, again)]
    low = {ordered(*cell) for cell, value in cells.items() if value < limit and best.get(cell, value) < limit}
    slow_rails, suspected = [], []
    for of_rail in rails.values():
        units = sorted({unit for link in of_rail for unit in link})
        if len(units) > 2 and _most(of_rail, low):
            slow_rails.append(Slow("rail", tuple(units), median(links[link] for link in of_rail), usual))
        elif len(units) > 2:  # of two, either may be the slow one
            suspected += [unit for unit in units if _most([link for link in of_rail if unit in link], low)]
    blamed = {*suspected, *(unit for fault in slow_rails for unit in fault.units)}
    rest = {cell: value for cell, value in cells.items() if not blamed & {*cell}}
    medians = _medians(links)
    faults = [*slow_rails, *(Slow("node", (unit,), medians[unit], usual) for unit in suspected)]
    low_again = [fault for fault in faults if _is_low_again(fault.units, links_again, limit)]
    return [*low_again, *_low_links(rest, best, again, limit, usual)]


def _most(links: Collection[Pair], low: Collection[Pair]) -> bool:
    return sum(link in low for link in links) >= MOST_LOW * len(links)


def _slow_links(cells: Mapping[Pair, float], best: Mapping[Pair, float], again: Mapping[Pair, float]) -> list[Slow]:
    if len(cells) < FEWEST_PEERS or not _are_few_low(cells):
        return []
    return _low_links(cells, best, again, low_limit(cells.values()), median(cells.values()))


def _are_few_low(cells: Mapping[Pair, float]) -> bool:
    """Whether low links are the exception; where routes collide by chance, as hashed ones do, many are low."""
    if not cells:
        return True
    limit, links = low_limit(cells.values()), _links(cells)
    return sum(value < limit for value in links.values()) <= MOST_SINGLE * len(links)


def _low_links(
    cells: Mapping[Pair, float], best: Mapping[Pair, float], again: Mapping[Pair, float], limit: float, usual: float
) -> list[Slow]:
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
    met = {ordered(side_of[a], side_of[b]) for a, b in across}
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


def _is_low_again(units: Collection[int], links: Mapping[Pair, float], limit: float) -> bool:
    values = [value for link, value in links.items() if not {*units}.isdisjoint(link)]
    return not values or median(values) < limit


def _links(cells: Mapping[Pair, float]) -> dict[Pair, float]:
    """Each link at the rate of its slower direction."""
    links: dict[Pair, float] = {}
    for (source, target), value in cells.items():
        link = ordered(source, target)
        links[link] = min(value, links.get(link, value))
    return links


def _medians(links: Mapping[Pair, float]) -> dict[int, float]:
    """Each unit's median over its partners."""
    values_of: dict[int, list[float]] = {}
    for link, value in links.items():
        for unit in link:
            values_of.setdefault(unit, []).append(value)
    return {unit: median(values) for unit, values in values_of.items()}
