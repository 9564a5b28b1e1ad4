"""How much longer the second run takes, with an interval that repeats decide and not iterations.

The design
----------
All is done on logarithms, so a change is a ratio, and noise a fraction.

**Samples.** Iterations of one start are autocorrelated and share its drift and its place in memory; so a repeat is one
sample, the median of its iterations. How much iterations scatter (by their median absolute deviation, which
spikes do not move) bounds the variance of that median from below.

**Autocorrelation.** Repeats are samples of a machine that drifts. What a difference of means varies by is therefore
taken from the slow part of what repeats do: the squares of their first cosine coefficients, about 0.6 n^(2/3) of n - 1.
With white noise these are as good as any others, so the interval is Student's with that many degrees of freedom; with
autocorrelated noise they are larger than the fast ones, as the variance of a mean is. Both runs are held to follow one
law, so their coefficients are pooled; with unlike numbers of repeats each run's own variance is used if it gives more.

**The run as a whole.** In each repeat the typical case: the median over cases of what each has beyond its own mean over
both runs. These series are compared as those of a case are. What all cases share is seen in 4 repeats, where a single
case is not.

**A case among others** has noise that it shares, that of the run as a whole, and its own, what is left when the typical
case is taken off each repeat (0.8 n^(2/3) coefficients, since shared drift is gone). Both half widths are added: many
cases share one drift, and among many there is always one whose own few repeats happen to agree. Of fewer than 10 cases
the typical one is largely noise of each, so there they are added as squares.

**Luck.** Two to four repeats agree by luck where starts fall into two states: of many cases all starts of one are in
the fast state and all in the other run in the slow one. So no case's own noise is taken to be less than what the half
of all cases that agree best in one run shows in the other, where a departure counts for no more than the change in
question: rare ones that are far larger say nothing of it. A single repeat of new may depart as far as any of base did
in the half of the cases in which the other repeats agree best.

**Several quantities.** Each of q independent quantities, the run as a whole among them, gets an interval of 1 - 5 %/q
(Bonferroni), and none less than 99.8 %: a slowdown that is there is then excluded at most once in a thousand runs.

**Few repeats.** One does not show how much another start would differ, and two or three hardly do. With 5 quantities or
more no interval is wider than this: the spread of all their changes (or a quantity's own, if that is more), with the
tails of Student's t of 3 degrees, and what all starts of a run share, which is unseen and taken as a standard deviation
of 10 %. So one repeat can show that all takes twice as long, and excludes nothing. Fewer than 5 show nothing by it.

**A baseline of several runs** shows how far runs differ by themselves, as hosts and days do. Where their means are
further apart than their repeats would have them, new is one run more, whatever the number of its repeats: the interval
is Student's of these means, and no narrower than the other. Of many quantities that is asked only if one is so far
apart that it would hardly be the furthest of all by luck. Then runs may agree by luck in any: no case's are taken to be
nearer than a run was to the others in the half of the cases in which these agree best.

A machine that stays slower for longer than a run cannot be told from a slower program by any of this: run base and new
in turn.

Source
------
Müller 2007, J. Econometrics 141, and Lazarus, Lewis, Stock and Watson 2018, J. Business & Economic Statistics 36, for
the equally weighted cosine estimate and its t distribution (they take 0.41 n^(2/3) of hundreds of samples; the factors
here are for 2 to 20, and checked by ``python -m tests.simulate_compare``). Kalibera and Jones 2013, ISMM, for repeats
as the sampling unit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clusterbench.formulas.student_t import quantile
from clusterbench.types import MOST_REPEATS

CONFIDENCE = 0.95
LARGEST_TAIL = 0.001
OF_ALL_NOISE, OF_OWN_NOISE = 0.6, 0.8
"""Times n^(2/3), of n repeats: how many slow coefficients a variance is taken from; more where drift was taken off."""
FEWEST_ADDED, FEWEST_QUANTITIES = 10, 5
FEWEST_ALONE = 4
"""Repeats of base from which on three agree, so that a single one of new may be held against the fourth."""
UNSEEN_SD = 0.10
BY_CHANCE = 0.02
"""Of baselines whose runs follow one law so many seem to have runs that are further apart than their repeats."""
_TAILS = 3
_MAD_TO_SD = 1.4826
_NOTHING = 1e-18  # squares of rounding errors

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Repeats:
    """One quantity in one run; arrays may have axes in front, one entry a simulated pair of runs.

    Attributes
    ----------
    logarithms
        ``[..., repeat]``, in the order in which they ran; larger is worse.
    floor
        ``[...]``, the variance that a repeat's median has from its iterations alone; 0 where it is not known.
    scatter
        ``[...]``, the variance of an iteration within its repeat; 0 where it is not known.
    runs
        Of how many runs they are, one behind the other with as many repeats each.
    """

    logarithms: Floats
    floor: Floats
    scatter: Floats
    runs: int = 1

    @property
    def count(self) -> int:
        return int(self.logarithms.shape[-1])

    def without(self, shared: Repeats) -> Repeats:
        """What is left where ``shared``, which has as many repeats or more, is taken off."""
        return replace(self, logarithms=self.logarithms - shared.logarithms[..., : self.count])

    @classmethod
    def of_iterations(cls, logarithms: Floats) -> Repeats:
        """Of ``[..., repeat, iteration]``."""
        centers = np.median(logarithms, axis=-1)
        deviations = np.median(np.abs(logarithms - centers[..., None]), axis=-1)
        scatter = np.mean((_MAD_TO_SD * deviations) ** 2, axis=-1)
        # The variance of a median of n independent samples of a normal distribution is pi/2 times that of their mean.
        return cls(centers, math.pi / 2 * scatter / logarithms.shape[-1], scatter)

    @classmethod
    def of_values(cls, logarithms: ArrayLike) -> Repeats:
        """Of ``[..., repeat]``, where there is one figure a repeat."""
        values = np.asarray(logarithms, dtype=np.float64)
        unknown = np.zeros(values.shape[:-1])
        return cls(values, unknown, unknown)


@dataclass(frozen=True)
class Change:
    """Logarithm of new over base, above 0 where new is worse; the interval is ``log`` plus and minus ``half_width``.

    ``half_width`` is infinite where nothing can be said. ``variance`` is that of one repeat, infinite where both runs
    have one.
    """

    log: Floats
    half_width: Floats
    variance: Floats


def tail_of(num_quantities: int) -> float:
    """Probability on either side of each interval, for all of so many quantities to hold together."""
    return min(LARGEST_TAIL, (1 - CONFIDENCE) / 2 / max(1, num_quantities))


def is_worse(change: Change, margin: float) -> NDArray[np.bool_]:
    """The interval lies above no change and not within the margin, and the estimate above half of it."""
    is_shown = (change.log > change.half_width) & (change.log > math.log1p(margin / 2))
    return np.asarray(is_shown & ~is_same(change, margin))


def is_better(change: Change, margin: float) -> NDArray[np.bool_]:
    """The mirror image of worse."""
    is_shown = (change.log < -change.half_width) & (change.log < -math.log1p(margin / 2))
    return np.asarray(is_shown & ~is_same(change, margin))


def is_same(change: Change, margin: float) -> NDArray[np.bool_]:
    """The interval lies within the margin."""
    return np.asarray(np.abs(change.log) + change.half_width <= math.log1p(margin))


def excludes_regression(change: Change, margin: float) -> NDArray[np.bool_]:
    """Whether the interval ends below the margin, by more than luck.

    An interval wider than the margin may lie low by chance: it has to lie below no change three times over.
    """
    room = math.log1p(margin)
    low_enough = change.log + change.half_width <= room
    return np.asarray(low_enough & ((change.half_width <= room) | (change.log <= -3 * change.half_width)))


def compare_run(base: Sequence[Repeats], new: Sequence[Repeats]) -> tuple[list[Change], Change | None]:
    """The change of each quantity, and of the run as a whole; None for that where there is one quantity only.

    Parameters
    ----------
    base, new
        The same quantities in the same order, each counted once.
    """
    pairs = list(zip(base, new, strict=True))
    tail = tail_of(len(pairs) + (len(pairs) > 1))
    if len(pairs) < 2:
        return [change_of(*pair, tail) for pair in pairs], None
    shared = _shared(base, new)
    own = [(first.without(shared[0]), second.without(shared[1])) for first, second in pairs]
    may_be_apart = _are_runs_apart([*own, shared])
    whole = change_of(*shared, tail, may_be_apart=may_be_apart)
    together = np.add if len(pairs) >= FEWEST_ADDED else np.hypot
    of_own = [change_of(*pair, tail, OF_OWN_NOISE, may_be_apart) for pair in own]
    logs = [second.logarithms.mean(axis=-1) - first.logarithms.mean(axis=-1) for first, second in pairs]
    of_own = _not_by_luck(own, of_own, logs, tail, may_be_apart)
    changes = [_beside_others(log, change, whole, together) for log, change in zip(logs, of_own, strict=True)]
    if len(pairs) < FEWEST_QUANTITIES:
        return changes, whole
    spread = _spread(changes)
    own = [np.maximum(spread, _deviation(*pair, change)) for pair, change in zip(pairs, changes, strict=True)]
    changes = [_narrowed(change, deviation, tail) for change, deviation in zip(changes, own, strict=True)]
    # The variance of a median of n independent samples of a normal distribution is pi/2 times that of their mean.
    return changes, _narrowed(whole, spread * math.sqrt(math.pi / 2 / len(pairs)), tail)


def change_of(
    base: Repeats, new: Repeats, tail: float, coefficients: float = OF_ALL_NOISE, may_be_apart: Any = True
) -> Change:
    """The change of one quantity by itself; nothing can be said where both runs have one repeat.

    ``may_be_apart``: whether runs of the base may differ by more than their repeats.

    Examples
    --------
    >>> base, new = (Repeats.of_values(values) for values in ([0.01, -0.01, 0.0, 0.0], [0.10, 0.11, 0.09, 0.10]))
    >>> change = change_of(base, new, tail=0.025)
    >>> round(float(change.log), 3), round(float(change.half_width), 3)
    (0.1, 0.012)
    """
    log = new.logarithms.mean(axis=-1) - base.logarithms.mean(axis=-1)
    squares = [_slow_squares(repeats, coefficients) for repeats in (base, new)]
    degrees = [num_coefficients(repeats.count, coefficients) for repeats in (base, new)]
    if not any(degrees):
        return Change(log, np.full_like(log, math.inf), np.full_like(log, math.inf))
    floor = np.maximum(base.floor, new.floor)
    variance = np.maximum((squares[0] + squares[1]) / sum(degrees), floor)
    of_difference = variance * (1 / base.count + 1 / new.count)
    if all(degrees):
        apart = sum(
            np.maximum(of_run / degree, floor) / repeats.count
            for of_run, degree, repeats in zip(squares, degrees, (base, new), strict=True)
        )
        of_difference = np.maximum(of_difference, apart)
    half_width = quantile(tail, sum(degrees)) * np.sqrt(of_difference)
    if base.runs > 1:
        of_runs = np.where(may_be_apart, _between_runs(base, new, tail), 0.0)
        variance = np.where(of_runs > half_width, math.inf, variance)
        half_width = np.maximum(half_width, of_runs)
    return Change(log, half_width, variance)


def _between_runs(base: Repeats, new: Repeats, tail: float) -> Any:
    """The half width where runs of the base are apart by more than their repeats are, and 0 where they are not."""
    of_means = _means_of_runs(base).var(axis=-1, ddof=1)
    half_width = quantile(tail, base.runs - 1) * np.sqrt(of_means * (1 + 1 / base.runs))
    return np.where(_apart(base, new) > NormalDist().inv_cdf(1 - BY_CHANCE), half_width, 0.0)


def _means_of_runs(repeats: Repeats) -> Floats:
    """``[..., run]``."""
    return np.stack([run.mean(axis=-1) for run in np.array_split(repeats.logarithms, repeats.runs, axis=-1)], axis=-1)


def _apart(base: Repeats, new: Repeats) -> Any:
    """By how many standard deviations runs of the base are further apart than their repeats would have them.

    Of runs with one repeat each nothing tells these two apart: infinitely far.
    """
    if base.count == base.runs:
        return np.full(base.logarithms.shape[:-1], math.inf)
    runs = np.array_split(base.logarithms, base.runs, axis=-1)
    inside = sum(run.shape[-1] * run.var(axis=-1) for run in (*runs, new.logarithms))
    degrees = base.count - base.runs + new.count - 1
    of_means = _means_of_runs(base).var(axis=-1, ddof=1)
    ratio = base.count / base.runs * of_means * degrees / np.maximum(inside, _NOTHING)
    return _deviations(ratio, base.runs - 1, degrees)


def _are_runs_apart(pairs: Sequence[tuple[Repeats, Repeats]]) -> Any:
    """Whether runs of the base are further apart in one quantity than they would be in any by chance."""
    furthest = NormalDist().inv_cdf(1 - BY_CHANCE / len(pairs))
    return np.any([_apart(*pair) > furthest for pair in pairs if pair[0].runs > 1], axis=0)


def _deviations(ratio: Any, first: int, second: int) -> Any:
    """Of a ratio of two variances with so many degrees of freedom, as standard deviations of a normal distribution.

    Source: Paulson 1942, Annals of Mathematical Statistics 13, 233.
    """
    root = np.cbrt(ratio)
    one, other = 2 / (9 * first), 2 / (9 * second)
    return ((1 - other) * root - (1 - one)) / np.sqrt(other * root**2 + one)


def num_coefficients(count: int, coefficients: float = OF_ALL_NOISE) -> int:
    """Of how many of the slowest cosines of so many repeats the variance is taken.

    >>> [num_coefficients(count) for count in (1, 2, 3, 5, 10, 20)]
    [0, 1, 1, 2, 3, 4]
    """
    return min(count - 1, round(coefficients * math.pow(count, 2 / 3)))


def repeats_needed(change: Change, margin: float, tail: float) -> int | None:
    """Repeats of each run with which this noise would leave nothing undecided; None where that is not known.

    ``change`` is that of one pair of runs. More than 1000 are given as 1001.
    """
    log, variance = float(change.log), float(change.variance)
    if not math.isfinite(variance):
        return None
    shown = log if log > math.log1p(margin / 2) else 0.0
    room = max(shown, math.log1p(margin) - log)

    def is_enough(count: int) -> bool:
        return quantile(tail, 2 * num_coefficients(count)) * math.sqrt(2 * variance / count) <= room

    return bisect_left(range(MOST_REPEATS + 1), True, lo=2, key=is_enough)


@cache
def _cosines(count: int, coefficients: float) -> Floats:
    """``[repeat, coefficient]``, orthonormal, the slowest first and none of them constant."""
    frequencies = np.arange(1, num_coefficients(count, coefficients) + 1)
    waves: Floats = math.sqrt(2 / count) * np.cos(math.pi / count * np.outer(np.arange(count) + 0.5, frequencies))
    return waves


def _slow_squares(repeats: Repeats, coefficients: float) -> Any:
    slow = np.sum((repeats.logarithms @ _cosines(repeats.count, coefficients)) ** 2, axis=-1)
    if repeats.count == 3:  # the slowest cosine passes through 0 at the second, however far that is off
        return np.maximum(slow, num_coefficients(3, coefficients) * repeats.logarithms.var(axis=-1, ddof=1))
    return slow


def _beside_others(log: Floats, own: Change, whole: Change, together: Callable[[Floats, Floats], Floats]) -> Change:
    """The change of a quantity whose noise is what it shares with the others, and its own beside that."""
    variance = together(np.sqrt(own.variance), np.sqrt(whole.variance)) ** 2
    return Change(log, together(own.half_width, whole.half_width), variance)


# Where repeats or runs agree by luck.


def _not_by_luck(
    own: Sequence[tuple[Repeats, Repeats]], changes: Sequence[Change], logs: Sequence[Floats], tail: float, apart: Any
) -> list[Change]:
    """No narrower than the cases that seem as quiet have reason to be; ``logs`` are the changes in question."""
    found = list(changes)
    most_runs = max(base.runs for base, _ in own)
    repeated = [index for index, pair in enumerate(own) if min(run.count for run in pair) > 1]
    single = [index for index, (base, new) in enumerate(own) if new.count == 1 and base.count >= FEWEST_ALONE]
    of_runs = [index for index, (base, _) in enumerate(own) if base.runs == most_runs]
    if repeated:
        among = [own[index] for index in repeated]
        departures = [_stacked([_departures(pair[side]) for pair in among]) for side in (0, 1)]
        spreads = [np.mean(of_run**2, axis=-1) for of_run in departures]
        degrees = math.ceil(len(among) / 2) * (departures[1].shape[-1] - 1)
        for index in repeated:
            size = np.abs(logs[index])
            variance = (_usual(spreads[0], departures[1], size) + _usual(spreads[1], departures[0], size)) / 2
            each = sum(1 / run.count for run in own[index])
            found[index] = _widened(found[index], quantile(tail, degrees) * np.sqrt(variance * each), variance)
    if single:
        furthest = _furthest([own[index][0] for index in single])
        for index in single:
            found[index] = _widened(found[index], furthest, found[index].variance)
    if most_runs > 1:
        means = _stacked([_means_of_runs(own[index][0]) for index in of_runs])
        degrees = math.ceil(len(of_runs) / 2) * (most_runs - 1)
        for index in of_runs:
            size = np.abs(logs[index])
            squares = [_usual(spread, off[..., None], size) for spread, off in _without_each(means)]
            # A run is off the mean of the others by more than it is off the mean of all runs there could be.
            variance = np.mean(squares, axis=0) * (most_runs - 1) / most_runs
            half_width = quantile(tail, degrees) * np.sqrt(variance * (1 + 1 / most_runs))
            found[index] = _widened(found[index], np.where(apart, half_width, 0.0), np.array(math.inf))
    return found


def _widened(change: Change, half_width: Any, variance: Any) -> Change:
    """With such a half width, and variance of a repeat, if that is more."""
    is_more = half_width > change.half_width
    return replace(
        change,
        half_width=np.maximum(change.half_width, half_width),
        variance=np.where(is_more, np.maximum(variance, change.variance), change.variance),
    )


def _departures(repeats: Repeats) -> Floats:
    """Of each repeat from the median one of its run."""
    runs = np.array_split(repeats.logarithms, repeats.runs, axis=-1)
    return np.concatenate([run - np.sort(run, axis=-1)[..., [(run.shape[-1] - 1) // 2]] for run in runs], axis=-1)


def _stacked(series: Sequence[Floats]) -> Floats:
    """``[case, ..., repeat]``, as many repeats as all have."""
    fewest = min(each.shape[-1] for each in series)
    return np.stack([each[..., :fewest] for each in series])


def _is_quiet(spreads: Floats) -> NDArray[np.bool_]:
    """Whether a case, the first axis, is of the half with the smallest spreads; all are where these are equal."""
    return np.asarray(spreads <= np.median(spreads, axis=0))


def _usual(spreads: Floats, departures: Floats, size: Floats) -> Any:
    """The mean square of departures, of ``size`` at most, in the half of the cases with the smallest spreads."""
    squares = np.minimum(np.abs(departures), size[..., None]) ** 2
    return np.mean(squares.mean(axis=-1), axis=0, where=_is_quiet(spreads))


def _without_each(values: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Of ``[case, ..., repeat]``, for each repeat: the variance of the others, and how far it is off their mean."""
    for index in range(values.shape[-1]):
        others = np.delete(values, index, axis=-1)
        yield others.var(axis=-1), values[..., index] - others.mean(axis=-1)


def _furthest(run: Sequence[Repeats]) -> Any:
    """How far a single repeat was off the others in a case in which these agree as well as in half of all."""
    off = [
        np.max(np.abs(away), axis=0, where=_is_quiet(spread), initial=0.0)
        for spread, away in _without_each(_stacked([repeats.logarithms for repeats in run]))
    ]
    return np.max(off, axis=0)


# The run as a whole.


def _shared(base: Sequence[Repeats], new: Sequence[Repeats]) -> tuple[Repeats, Repeats]:
    """In each repeat of each run the median over quantities of what they have beyond their mean over both runs."""
    centers = [
        (first.logarithms.mean(axis=-1) + second.logarithms.mean(axis=-1)) / 2
        for first, second in zip(base, new, strict=True)
    ]
    of_base = _medians(base, centers)
    most_runs = max(repeats.runs for repeats in base)
    return replace(of_base, runs=min(of_base.count, most_runs)), _medians(new, centers)


def _medians(run: Sequence[Repeats], centers: Sequence[Any]) -> Repeats:
    rounds = [
        np.median(
            np.stack(
                [
                    repeats.logarithms[..., number] - center
                    for repeats, center in zip(run, centers, strict=True)
                    if number < repeats.count
                ]
            ),
            axis=0,
        )
        for number in range(max(repeats.count for repeats in run))
    ]
    return Repeats.of_values(np.stack(rounds, axis=-1))


# Where repeats are too few to show how far another would differ.


def _spread(changes: Sequence[Change]) -> Any:
    """Standard deviation of the changes of all quantities about their median."""
    logs = np.stack([change.log for change in changes])
    return _MAD_TO_SD * np.median(np.abs(logs - np.median(logs, axis=0)), axis=0)


def _deviation(base: Repeats, new: Repeats, change: Change) -> Any:
    """Of a quantity's own change, as its repeats show it, or its iterations: those of a start may be off together."""
    of_repeats = change.variance * (1 / base.count + 1 / new.count)
    return np.sqrt(np.where(np.isfinite(of_repeats), of_repeats, base.scatter + new.scatter))


def _narrowed(change: Change, deviation: Any, tail: float) -> Change:
    """By what is known without repeats: how unlike the quantities changed, and how far a run may be off as a whole."""
    of_run = math.sqrt(2) * UNSEEN_SD * NormalDist().inv_cdf(1 - tail)
    return replace(change, half_width=np.minimum(change.half_width, quantile(tail, _TAILS) * deviation + of_run))
