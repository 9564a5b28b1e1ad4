"""Steps and drifts in a series of figures in the order of time: one of each run, or of each repeat in a run.

Both tests are of ranks, so that a single outlier hardly moves them and no law of noise is assumed. A step that only the
last run shows is no step to them: two runs are compared by ``clusterbench compare``.

Source
------
Pettitt 1979, "A non-parametric approach to the change-point problem", for the step; Mann 1945 and Kendall 1975 for the
drift, Theil 1950 and Sen 1968 for its slope and the interval around it; Holm 1979 for the correction over figures,
which holds whatever their dependence: cases of a run share the noise of that run; Tarone 1990 for leaving out of it
what could not be shown in any case. Probabilities are those among
permutations of the runs, all up to 8 runs and a fixed sample beyond, counted as in Phipson and Smyth 2010.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clusterbench.formulas.statistics import median

FEWEST = 5
"""Runs with a figure, below which nothing is said of it."""

ALPHA = 0.05
"""Of steady series, all figures together, at most so many are called a step or a drift."""

_NUM_TESTS = 2  # of each series: step and drift
_ALL_ORDERS = 8  # runs, of which every order is tried: 40,320
_NUM_ORDERS, _BATCH, _SEED = 99_999, 10_000, 1979

Ranks = NDArray[np.float64]
Kind = Literal["step", "drift"]


@dataclass(frozen=True)
class Shift:
    """What a series shows, if anything.

    Attributes
    ----------
    kind
        The one of both that leaves less distance to the figures.
    before
        Of a step, the runs before it; of a drift 0.
    log
        Logarithm of the figures behind a step over those before it; of a drift, of its end over its start.
    p
        Probability of so clear a step or drift without any, for both tests together and before the correction over
        figures.
    """

    kind: Kind
    before: int
    log: float
    p: float


def shift_of(values: Sequence[float]) -> Shift:
    """The likelier of a step and a drift, with its probability.

    Parameters
    ----------
    values
        At least 5, all above 0, in the order of the runs.

    >>> found = shift_of([10.0, 10.1, 10.2, 9.9, 10.05, 9.95, 12.0, 12.1, 11.9, 12.2, 11.8, 12.05])
    >>> found.kind, found.before, round(found.log, 2), found.p < 0.01
    ('step', 6, 0.18, True)
    """
    if len(values) < FEWEST or min(values) <= 0:
        raise ValueError(f"a trend needs at least {FEWEST} values above 0, not {list(values)}")
    logs = [math.log(value) for value in values]
    p_step, p_drift = _probabilities(logs)
    p = min(1.0, _NUM_TESTS * min(p_step, p_drift))
    before = _split(_ranks(logs))
    low, high = median(logs[:before]), median(logs[before:])
    slope = theil_sen(logs)
    start = median([log - slope * index for index, log in enumerate(logs)])
    of_step = sum(abs(log - (low if index < before else high)) for index, log in enumerate(logs))
    of_drift = sum(abs(log - start - slope * index) for index, log in enumerate(logs))
    if of_step <= of_drift:
        return Shift("step", before, high - low, p)
    return Shift("drift", 0, slope * (len(logs) - 1), p)


def theil_sen(values: Sequence[float]) -> float:
    """The median of the slopes between all pairs, per run.

    >>> theil_sen([1.0, 2.0, 3.0, 90.0, 5.0])
    1.0
    """
    return median(_slopes(values))


def slope_interval(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """Where the slope per run lies, but for a chance of ``alpha``.

    It holds the slopes that Mann and Kendall's test does not rule out, and is infinite where so few values rule out
    none. It tells of a step, too, where about a fifth of the runs or more are before it and behind it.

    >>> slope_interval([1.0, 2.0, 3.0, 4.0, 5.0, 60.0, 7.0, 8.0, 9.0, 10.0], 0.05)
    (1.0, 1.0)
    """
    count = len(values)
    slopes = sorted(_slopes(values))
    width = NormalDist().inv_cdf(1 - alpha / 2) * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    outside = math.floor((len(slopes) - width) / 2)
    return (slopes[outside - 1], slopes[-outside]) if outside > 0 else (-math.inf, math.inf)


def _slopes(values: Sequence[float]) -> list[float]:
    return [(values[j] - values[i]) / (j - i) for i, j in combinations(range(len(values)), 2)]


def holm(probabilities: Sequence[float]) -> list[float]:
    """The same, corrected for their number by Holm's method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(probabilities)
    least = 0.0
    for place, index in enumerate(sorted(range(len(probabilities)), key=lambda index: probabilities[index])):
        least = max(least, min(1.0, (len(probabilities) - place) * probabilities[index]))
        corrected[index] = least
    return corrected


def corrected(series: Sequence[Sequence[float]], probabilities: Sequence[float]) -> list[float]:
    """Holm's correction over the series that move at all.

    One whose values are all equal, as memory mostly is, looks the same in every order of the runs: it can never be
    called a step or a drift, and so takes nothing from the others.

    >>> corrected([[1.0, 2.0], [5.0, 5.0], [7.0, 7.0]], [0.01, 1.0, 1.0])
    [0.01, 1.0, 1.0]
    """
    moving = [index for index, values in enumerate(series) if moves(values)]
    of_moving = dict(zip(moving, holm([probabilities[index] for index in moving]), strict=True))
    return [of_moving.get(index, 1.0) for index in range(len(series))]


def moves(values: Sequence[float]) -> bool:
    """Whether not all of them are equal."""
    return min(values) < max(values)


def least_probability(num_runs: int) -> float:
    """Of the clearest step that so many runs can show, as in :class:`Shift`.

    >>> least_probability(5) > 0.05, least_probability(12) < 0.01
    (True, True)
    """
    return min(1.0, _NUM_TESTS * _probabilities([float(index) for index in range(num_runs)])[0])


def _probabilities(values: Sequence[float]) -> tuple[float, float]:
    """Of so large a statistic of Pettitt, and of Mann and Kendall, in any order of these values."""
    ranks = _ranks(values)
    if np.ptp(ranks) == 0:
        return 1.0, 1.0
    of_step, of_drift = _null(tuple(np.sort(ranks)))
    seen = ranks[np.newaxis]
    step, drift = _largest_split(seen)[0], _kendall(seen)[0]
    extra = 0 if len(values) <= _ALL_ORDERS else 1
    total = len(of_step) + extra
    return (
        (int(np.count_nonzero(of_step >= step)) + extra) / total,
        (int(np.count_nonzero(of_drift >= drift)) + extra) / total,
    )


def _ranks(values: Sequence[float]) -> Ranks:
    """From 1; equal values share the mean of theirs."""
    found = np.asarray(values)
    below = (found[:, np.newaxis] > found).sum(axis=1)
    equal = (found[:, np.newaxis] == found).sum(axis=1)
    return np.asarray(below + (equal + 1) / 2, dtype=np.float64)


def _splits(orders: Ranks) -> Ranks:
    """Pettitt's U behind each run but the last: from twice the sum of ranks up to it."""
    count = orders.shape[1]
    behind = np.arange(1, count)
    found: Ranks = np.abs(2 * np.cumsum(orders, axis=1)[:, :-1] - behind * (count + 1))
    return found


def _largest_split(orders: Ranks) -> Ranks:
    return np.asarray(_splits(orders).max(axis=1), dtype=np.float64)


def _split(ranks: Ranks) -> int:
    """How many runs lie before the clearest step."""
    return int(_splits(ranks[np.newaxis])[0].argmax()) + 1


def _kendall(orders: Ranks) -> Ranks:
    """Pairs that rise less pairs that fall, without its sign."""
    rising = np.zeros(len(orders))
    for apart in range(1, orders.shape[1]):
        rising += np.sign(orders[:, apart:] - orders[:, :-apart]).sum(axis=1)
    return np.abs(rising)


@cache
def _null(ranks: tuple[float, ...]) -> tuple[Ranks, Ranks]:
    """Both statistics in all orders of these ranks, or in a fixed sample of them."""
    batches = [(_largest_split(orders), _kendall(orders)) for orders in _orders(np.array(ranks))]
    return np.concatenate([batch[0] for batch in batches]), np.concatenate([batch[1] for batch in batches])


def _orders(ranks: Ranks) -> Iterator[Ranks]:
    if len(ranks) <= _ALL_ORDERS:
        yield np.array(list(permutations(ranks)))
        return
    draw = np.random.default_rng(_SEED)
    for done in range(0, _NUM_ORDERS, _BATCH):
        yield draw.permuted(np.tile(ranks, (min(_BATCH, _NUM_ORDERS - done), 1)), axis=1)
