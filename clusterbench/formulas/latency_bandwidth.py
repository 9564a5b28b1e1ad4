"""Time of a message as latency plus bytes over bandwidth, fitted to a sweep of sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from clusterbench.formulas.statistics import median

FEWEST_POINTS = 4
MOST_SEGMENTS = 3

_NOISE = 0.01  # a fit that is this close, as a fraction, is not improved by another segment
_OUTLIER = math.log(1.35)  # the least that a point must be off its neighbours to be set aside beforehand
_MOST_ENDS = 48  # of segments that are tried, so that a sweep of hundreds of sizes costs no minutes
_TUKEY = 4.685  # 95 % efficiency on normal residuals: Beaton, Tukey 1974
_MAD = 1.4826
_ROUNDS = 8  # of each of the two kinds of weights


@dataclass(frozen=True)
class Segment:
    """``t(S) = alpha_s + S / bytes_per_s`` from the size ``smallest`` to ``largest``, both of them measured.

    ``error`` is the median distance of the measured times from the line, as a fraction. ``bytes_per_s`` is None where
    time grows with size by less than that, or by less than 1 %.
    """

    smallest: float
    largest: float
    alpha_s: float
    bytes_per_s: float | None
    error: float
    num_points: int

    def time_s(self, size_bytes: float) -> float:
        return self.alpha_s + (size_bytes / self.bytes_per_s if self.bytes_per_s else 0.0)


@lru_cache(maxsize=4096)
def fit(points: tuple[tuple[float, float], ...], most_segments: int = MOST_SEGMENTS) -> tuple[Segment, ...]:
    """Straight lines through (size in bytes, seconds), sizes ascending: one, or more where an algorithm switches.

    Residuals are relative: 8 B count as much as 8 GiB. Of several points of one size, as two sweeps that overlap have,
    the median counts. Points far off their neighbours are set aside before the number of segments is chosen (Schwarz's
    criterion, at least four points each); within a segment each point is then weighed by its residual (Tukey's
    biweight). Neither latency nor bandwidth is ever negative.

    Returns
    -------
    The segments by size; none where there are fewer than four points.

    Source
    ------
    Hockney 1994, "The communication challenge for MPP"; Schwarz 1978, "Estimating the dimension of a model".

    Examples
    --------
    >>> (line,) = fit(tuple((8 * 4**i, 10e-6 + 8 * 4**i / 2e9) for i in range(10)))
    >>> round(line.alpha_s * 1e6, 3), round(line.bytes_per_s / 1e9, 3)
    (10.0, 2.0)
    """
    times_of: dict[float, list[float]] = {}
    for size, time_s in points:
        times_of.setdefault(size, []).append(time_s)
    points = tuple((size, median(times_s)) for size, times_s in times_of.items())
    if len(points) < FEWEST_POINTS:
        return ()
    weights = [0.0 if aside else 1.0 for aside in _set_aside(points)]
    ends = _best_ends(points, weights, most_segments)
    return tuple(_segment(points[start:end], weights[start:end]) for start, end in pairwise((0, *ends)))


def size_at_half_peak(sizes: Sequence[float], bandwidths: Sequence[float]) -> float:
    """The smallest size that reaches half of the highest bandwidth, between two measured sizes by their logarithms.

    >>> size_at_half_peak([1, 4, 16, 64], [1.0, 4.0, 16.0, 16.0])
    8.0
    """
    half = max(bandwidths) / 2
    at = next(index for index, bandwidth in enumerate(bandwidths) if bandwidth >= half)
    if at == 0 or bandwidths[at - 1] <= 0:
        return sizes[at]
    share = math.log(half / bandwidths[at - 1]) / math.log(bandwidths[at] / bandwidths[at - 1])
    return float(sizes[at - 1] * (sizes[at] / sizes[at - 1]) ** share)


# Outliers


def _set_aside(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether each point is off by every line through two of its neighbours: before, behind, and on both sides."""
    off = [_off(points, index) for index in range(len(points))]
    limit = max(_OUTLIER, 6 * _MAD * median(off))
    return [distance > limit for distance in off]


def _off(points: Sequence[tuple[float, float]], index: int) -> float:
    size, time_s = points[index]
    distances = []
    for before, after in ((index - 2, index - 1), (index - 1, index + 1), (index + 1, index + 2)):
        if before < 0 or after >= len(points):
            continue
        (left, left_s), (right, right_s) = points[before], points[after]
        predicted_s = left_s + (right_s - left_s) * (size - left) / (right - left)
        if predicted_s > 0:
            distances.append(abs(math.log(time_s / predicted_s)))
    return min(distances, default=0.0)


# Number and ends of segments


class _Sums:
    """Sums over the points from the first on, so that a line through any stretch of them costs the same."""

    def __init__(self, points: Sequence[tuple[float, float]], weights: Sequence[float]) -> None:
        terms = [
            (w, w / time_s, w * size / time_s, w / time_s**2, w * size / time_s**2, w * (size / time_s) ** 2)
            for (size, time_s), w in zip(points, weights, strict=True)
        ]
        self.sums = [list(accumulate(column, initial=0.0)) for column in zip(*terms, strict=True)]

    def line(self, start: int, end: int) -> tuple[float, float, float]:
        """alpha, seconds per byte, and the sum of squared relative residuals of points ``start`` to ``end - 1``."""
        n, t, s, tt, st, ss = (column[end] - column[start] for column in self.sums)
        return _line(n, t, s, tt, st, ss)


def _line(n: float, t: float, s: float, tt: float, st: float, ss: float) -> tuple[float, float, float]:
    """Least squares of ``1 = alpha x + gamma y`` with x = 1/time and y = size/time; both at least 0.

    ``n``, ``t``, ``s``, ``tt``, ``st``, ``ss`` are the weighted sums of 1, x, y, xx, xy, yy.
    """
    determinant = tt * ss - st * st
    if determinant > 1e-12 * tt * ss:
        alpha, gamma = (t * ss - s * st) / determinant, (s * tt - t * st) / determinant
        if alpha >= 0 and gamma >= 0:
            return alpha, gamma, max(0.0, n - alpha * t - gamma * s)
    flat = (t / tt, 0.0, max(0.0, n - t * t / tt)) if tt else (0.0, 0.0, 0.0)
    steep = (0.0, s / ss, max(0.0, n - s * s / ss)) if ss else flat
    return min(flat, steep, key=lambda line: line[2])


def _best_ends(points: Sequence[tuple[float, float]], weights: Sequence[float], most: int) -> tuple[int, ...]:
    """The index behind each segment's last point, for the number of segments that Schwarz's criterion prefers."""
    sums, count = _Sums(points, weights), sum(weights)
    num_points = len(points)
    stride = max(1, -(-num_points // _MOST_ENDS))
    cuts = [*range(0, num_points - FEWEST_POINTS + 1, stride), num_points]
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        end: (sums.line(0, end)[2], (end,)) for end in cuts if end >= FEWEST_POINTS
    }
    chosen, squares = best[num_points][1], best[num_points][0]
    lowest = _criterion(squares, 1, count)
    for number in range(2, most + 1):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end in cuts:
            tried = [
                (squares + sums.line(start, end)[2], (*ends, end))
                for start, (squares, ends) in best.items()
                if end - start >= FEWEST_POINTS
            ]
            if tried:
                longer[end] = min(tried)
        best = longer
        if num_points not in best:
            break
        squares, ends = _refined(sums, best[num_points][1], stride)
        if (value := _criterion(squares, number, count)) < lowest:
            chosen, lowest = ends, value
    return chosen


def _refined(sums: _Sums, ends: tuple[int, ...], stride: int) -> tuple[float, tuple[int, ...]]:
    """The sum of squares, and the ends moved to the best of the places that were passed over around each."""
    moved = [0, *ends]
    for number in range(1, len(moved) - 1):
        before, after = moved[number - 1], moved[number + 1]
        first = max(before + FEWEST_POINTS, moved[number] - stride + 1)
        last = min(after - FEWEST_POINTS, moved[number] + stride - 1)
        moved[number] = min(
            range(first, last + 1), key=lambda cut: sums.line(before, cut)[2] + sums.line(cut, after)[2]
        )
    return sum(sums.line(start, end)[2] for start, end in pairwise(moved)), tuple(moved[1:])


def _criterion(squares: float, num_segments: int, count: float) -> float:
    """Schwarz's criterion, with two parameters a segment and three more for each place where a segment ends.

    Three, because that place is the best of many: with one, a line of 28 sizes with 10 % noise would be cut in two 12
    times in 100; with three it is once.
    """
    parameters = 5 * num_segments - 3
    return count * math.log(squares / count + _NOISE**2) + parameters * math.log(count)


# One segment


def _segment(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> Segment:
    """Residuals are logarithms of model over measured: twice as long and half as long are equally far off.

    Least absolute residuals first, whose line does not depend on where it starts; from there Tukey's biweight.
    """
    residuals = [0.0] * len(points)
    alpha_s = gamma = 0.0
    for number in range(2 * _ROUNDS):
        sums = _Sums(points, weights)
        if not sums.sums[0][-1]:
            break
        alpha_s, gamma, _ = sums.line(0, len(points))
        modelled = [alpha_s + gamma * size for size, _ in points]
        residuals = [math.log(model_s / time_s) for model_s, (_, time_s) in zip(modelled, points, strict=True)]
        if number < _ROUNDS:
            robust = [1 / max(abs(residual), _NOISE) for residual in residuals]
        else:
            limit = _TUKEY * max(_MAD * median([abs(residual) for residual in residuals]), _NOISE)
            robust = [max(0.0, 1 - (residual / limit) ** 2) ** 2 for residual in residuals]
        weights = [weight * _of_logarithm(residual) for weight, residual in zip(robust, residuals, strict=True)]
    error = median([abs(math.expm1(residual)) for residual in residuals])
    smallest, largest = points[0][0], points[-1][0]
    grows = gamma * largest > max(error, _NOISE) * alpha_s
    return Segment(smallest, largest, alpha_s, 1 / gamma if grows else None, error, len(points))


def _of_logarithm(residual: float) -> float:
    """The weight by which least squares of ``model / time - 1`` has its minimum where that of logarithms is."""
    return residual / math.expm1(residual) / math.exp(residual) if abs(residual) > 1e-9 else 1.0
