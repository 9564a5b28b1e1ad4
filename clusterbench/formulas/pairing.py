"""Pairs to measure, in rounds; what their matrix shows is in :mod:`clusterbench.formulas.slow_pairs`.

A *unit* is what is paired: a node, a rank or a GPU, by its number. A *link* is an unordered pair of units, a *cell* one
of its two directions, (from, to). All pairs of one *round* are disjoint, so they may be measured at once: no unit
is in two measurements at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

Pair = tuple[int, int]
Round = tuple[Pair, ...]

MOST_IN_FULL = 16
"""Units of which all pairs are measured; of more, halves against each other and some random partners of each."""


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
    return [tuple(sorted(ordered(shuffled[a], shuffled[b]) for a, b in pairs)) for pairs in chosen]


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


def rounds_in_rails(num_nodes: int, rails: int, partners: int, seed: int) -> list[Round]:
    """Rounds of pairs of ranks with the same place in their nodes, one rail after the other.

    >>> rounds_in_rails(2, rails=3, partners=8, seed=0)
    [((0, 3),), ((1, 4),), ((2, 5),)]
    """
    of_nodes = rounds_of(num_nodes, partners, seed)
    return [
        tuple((a * rails + rail, b * rails + rail) for a, b in pairs) for rail in range(rails) for pairs in of_nodes
    ]


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


def ordered(a: int, b: int) -> Pair:
    """The link of two units."""
    return (a, b) if a < b else (b, a)
