"""Statistics of repeated measurements: medians, nearest-rank percentiles, spread, and ratios with an interval."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from clusterbench.formulas.student_t import quantile

UNSTABLE_CV = 0.05  # nccl-tests' own threshold: above 5 % a row is marked unstable

SETTLED_WITHIN = 0.01
"""Two stretches of a warm-up that differ by no more than this are alike: clocks have settled."""

_LIKE_NORMAL = 200  # degrees of freedom from which on Student's t is that of the normal distribution, within 1 %


@dataclass(frozen=True)
class Summary:
    """Median, 5th and 95th percentile of ``n`` samples, in their unit."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians and the bootstrap interval around it."""

    value: float
    low: float
    high: float


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two in the middle.

    >>> median([3.0, 1.0, 2.0, 10.0])
    2.5
    """
    _at_least(samples, 1, "a median")
    return statistics.median(samples)


def percentile(samples: Sequence[float], p: float) -> float:
    """The sample at nearest rank ``ceil(p * n)`` of the sorted ones; always one that was measured.

    Parameters
    ----------
    p
        Between 0 and 1, e.g. 0.95.

    Raises
    ------
    ValueError
        If there are too few samples for a tail: p99 and p1 need 100, p99.9 needs 1000. The slowest of 20 is no p99.

    Examples
    --------
    >>> percentile(range(1, 21), 0.95)
    19
    """
    least, rank = _nearest_rank(p, len(samples))
    _at_least(samples, least, f"p{100 * p:g}")
    return sorted(samples)[rank - 1]


@lru_cache
def _nearest_rank(p: float, n: int) -> tuple[int, int]:
    """The fewest samples that have such a percentile, and its rank among ``n``, from 1."""
    if not 0 < p < 1:
        raise ValueError(f"percentile {p} is not between 0 and 1; write 0.95 for the 95th.")
    share = Fraction(str(p))  # 0.07 * 100 is 7.000000000000001, whose ceiling is 8
    tail = min(share, 1 - share)
    return math.ceil(1 / tail) if tail <= Fraction(1, 100) else 1, math.ceil(share * n)


def summarise(samples: Sequence[float]) -> Summary:
    """Median, 5th and 95th percentile.

    >>> summarise([5.0, 1.0, 2.0])
    Summary(value=2.0, low=1.0, high=5.0, n=3)
    """
    ordered = sorted(samples)
    return Summary(median(ordered), percentile(ordered, 0.05), percentile(ordered, 0.95), len(ordered))


def median_interval(summary: Summary, confidence: float = 0.95) -> tuple[float, float]:
    """Where the median of infinitely many samples lies, with this confidence, where only a summary was kept.

    On either side the distance to the 5th or 95th percentile stands for the spread: it is divided by how far that
    percentile of ``n`` normal samples is expected from the middle (Blom 1958: the normal quantile at (r - 3/8) /
    (n + 1/4) of rank r), and multiplied by Student's t and the standard error of a median, sqrt(pi / 2n). A single
    sample has no spread, and is its own interval.

    >>> [round(bound, 2) for bound in median_interval(Summary(value=10.0, low=9.0, high=12.0, n=20))]
    [9.69, 10.84]
    """
    n = summary.n
    if n < 2:
        return summary.value, summary.value
    rank = _nearest_rank(0.95, n)[1]
    normal = statistics.NormalDist()
    above, below = (normal.inv_cdf((r - 0.375) / (n + 0.25)) for r in (rank, n + 1 - _nearest_rank(0.05, n)[1]))
    error = quantile((1 - confidence) / 2, min(n - 1, _LIKE_NORMAL)) * math.sqrt(math.pi / (2 * n))
    return (
        summary.value - error * (summary.value - summary.low) / below,
        summary.value + error * (summary.high - summary.value) / above,
    )


def coefficient_of_variation(samples: Sequence[float]) -> float:
    """Sample standard deviation over the mean, as a fraction; 0 for one sample. ``UNSTABLE_CV`` is the limit.

    >>> round(coefficient_of_variation([9.0, 10.0, 11.0]), 3)
    0.1
    """
    _at_least(samples, 1, "a coefficient of variation")
    mean = statistics.fmean(samples)
    if len(samples) == 1 or mean == 0:
        return 0.0
    # Not statistics.stdev: its exact fractions take seconds in a report of many cases.
    return math.sqrt(math.fsum((sample - mean) ** 2 for sample in samples) / (len(samples) - 1)) / mean


def jitter(samples: Sequence[float]) -> float:
    """Spread between the 5th and 95th percentile over the median, as a fraction.

    >>> jitter([9.0, 10.0, 12.0])
    0.3
    """
    summary = summarise(samples)
    return (summary.high - summary.low) / summary.value if summary.value else 0.0


def ratio_of_medians(
    numerator: Sequence[float],
    denominator: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """``median(numerator) / median(denominator)`` with its percentile bootstrap interval.

    The two lists are resampled independently, so they need not be equally long. The seed is fixed: the same samples
    give the same interval on every machine.

    Raises
    ------
    ValueError
        If a list is empty or the denominator's median can be 0.

    Examples
    --------
    >>> ratio_of_medians([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    Ratio(value=2.0, low=2.0, high=2.0)
    """
    _at_least(numerator, 1, "a ratio")
    _at_least(denominator, 1, "a ratio")
    if min(denominator) <= 0:
        raise ValueError(f"the denominator has a sample of {min(denominator)}; a ratio needs samples above 0.")
    draw = random.Random(seed)
    ratios = sorted(
        median(draw.choices(numerator, k=len(numerator))) / median(draw.choices(denominator, k=len(denominator)))
        for _ in range(resamples)
    )
    tail = (1 - confidence) / 2
    low = ratios[max(0, math.ceil(round(tail * resamples, 6)) - 1)]
    high = ratios[min(resamples, math.ceil(round((1 - tail) * resamples, 6))) - 1]
    return Ratio(median(numerator) / median(denominator), low, high)


def _at_least(samples: Sequence[float], n: int, what: str) -> None:
    if len(samples) < n:
        raise ValueError(f"{what} needs at least {n} samples; there are {len(samples)}.")
