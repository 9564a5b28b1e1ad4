"""How good a ranking by price is, on layouts that were measured, too."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from clusterbench.formulas.statistics import median

FEWEST = 5
"""Measured layouts that a cell must have to be scored."""

NEAR = 2.0
"""Layouts at most so many times slower than the best of their cell are near it: others are no candidates."""


@dataclass(frozen=True)
class Scored:
    """A layout with its measured and its predicted speed; its cell, a model on so many nodes, is where it competes."""

    cell: Hashable
    measured: float
    predicted: float


@dataclass(frozen=True)
class Scores:
    """What a ranking was worth.

    Attributes
    ----------
    cells, layouts
        How many there were.
    spearman, lowest_spearman
        Rank correlation within a cell: the median and the lowest.
    near_error
        Median of how far predictions near the best are off, relative, either way.
    near_bias
        Their median with its sign: above 0 is too fast.
    regret
        By how many of the first predictions are measured: what the best of those is slower than the best there is,
        relative to it being 0 for a perfect choice. Median, mean and largest over cells.
    """

    cells: int
    layouts: int
    spearman: float
    lowest_spearman: float
    near_error: float
    near_bias: float
    regret: dict[int, tuple[float, float, float]]


def scores_of(layouts: Iterable[Scored], best_of: Sequence[int] = (1, 3, 5)) -> Scores | None:
    """The scores of all cells with at least :data:`FEWEST` layouts; None where there is none."""
    by_cell: dict[Hashable, list[Scored]] = defaultdict(list)
    for layout in layouts:
        by_cell[layout.cell].append(layout)
    cells = [cell for cell in by_cell.values() if len(cell) >= FEWEST]
    if not cells:
        return None
    correlations = [spearman([each.measured for each in cell], [each.predicted for each in cell]) for cell in cells]
    near = [
        math.log(each.predicted / each.measured)
        for cell in cells
        for each in cell
        if each.measured * NEAR > max(other.measured for other in cell)
    ]
    return Scores(
        len(cells),
        sum(map(len, cells)),
        median(correlations),
        min(correlations),
        math.expm1(median([abs(error) for error in near])),
        math.expm1(median(near)),
        {number: _three([regret(cell, number) for cell in cells]) for number in best_of},
    )


def regret(cell: Sequence[Scored], number: int) -> float:
    """By how much the best of the first ``number`` predictions is slower than the best layout.

    >>> cell = [Scored("", 100.0, 1.0), Scored("", 80.0, 2.0), Scored("", 50.0, 3.0)]
    >>> regret(cell, 1), regret(cell, 2), regret(cell, 3)
    (1.0, 0.25, 0.0)
    """
    picked = sorted(cell, key=lambda each: -each.predicted)[:number]
    return max(each.measured for each in cell) / max(each.measured for each in picked) - 1


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation; equal values share the mean of their ranks.

    >>> spearman([1, 2, 3, 4], [10, 30, 20, 40])
    0.8
    """
    ranks = _ranks(first), _ranks(second)
    middle = (len(first) - 1) / 2
    products = sum((one - middle) * (other - middle) for one, other in zip(*ranks, strict=True))
    squares = [sum((rank - middle) ** 2 for rank in of) for of in ranks]
    return products / math.sqrt(squares[0] * squares[1]) if all(squares) else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    places: dict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), sum(values) / len(values), max(values)
