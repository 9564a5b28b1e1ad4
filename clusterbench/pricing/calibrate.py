"""Rates of a machine and a framework from a few measured steps, and how well those determine each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from clusterbench.expectation import Expectation
from clusterbench.pricing import TWO_SIDED_80, step_seconds
from clusterbench.pricing.profiles import PricedJob
from clusterbench.pricing.rates import LEAST, RATES, KnownRates, rates_with
from clusterbench.pricing.work import StepWork
from clusterbench.types import split_key
from clusterbench.words import plural

FITTED = ("matmul", "attention", "memory", "operator_time", "collective_time", "pipeline_factor", "step_time")
"""Rates that measured steps determine; the others are probed."""

FLOORS = ("operator_time", "collective_time")
"""Of those, the ones under which a micro-batch cannot get, whatever its work: see :mod:`clusterbench.pricing`."""

NOISE = 0.05
"""How far, as a logarithm, a measured step lies from the price with the right rates: about two thirds of them."""

NOT_KNOWN: Mapping[str, float] = {"pipeline_factor": math.log(4.0)}
"""Standard deviations, as logarithms, of what no datasheet tells."""

HARDLY, WIDE = 0.7, 1.15
"""A rate is not determined by the runs where its interval shrank to no less than this share, and is wider than that; a
narrower one where they say next to nothing of it."""

_MOST_ROUNDS, _STEP = 40, 1e-4
_NAMED = 3  # rates in a sentence
_NARROWER = 0.9  # an interval that is worth a word

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A step that was priced and measured; ``name`` says which."""

    name: str
    work: StepWork
    step_s: float


@dataclass(frozen=True)
class Wish:
    """A configuration that a calibration wants, of those there are.

    Attributes
    ----------
    num_nodes
        It runs on.
    is_wanted
        Whether one will do.
    rank
        The least is taken.
    """

    why: str
    num_nodes: int
    is_wanted: Callable[[Configuration], bool]
    rank: Callable[[Configuration], tuple[float, ...]]


@dataclass(frozen=True)
class Configuration:
    """What may be known of a step before it runs; ``parameters`` are the model's."""

    num_nodes: int
    parameters: float
    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    num_micro_batches: int
    zero: int


WISHES = (
    Wish(
        "products: nothing is sent but gradients, of a small model in large micro-batches",
        1,
        lambda each: each.tp == each.pp == 1,
        lambda each: (each.parameters, -each.micro_batch_size, each.zero),
    ),
    Wish(
        "launches: the smallest products there are on one node",
        1,
        lambda each: each.tp == 8 and each.pp == 1,
        lambda each: (each.micro_batch_size, each.parameters, each.zero),
    ),
    Wish(
        "launches, half of the ranks",
        1,
        lambda each: each.tp == 4 and each.pp == 1,
        lambda each: (each.micro_batch_size, each.parameters, each.zero),
    ),
    Wish(
        "products of a large model",
        1,
        lambda each: each.tp == 8 and each.pp == 1,
        lambda each: (-each.parameters, -each.micro_batch_size, each.zero),
    ),
    Wish(
        "stages on one node",
        1,
        lambda each: each.tp == each.pp == 2,
        lambda each: (-each.parameters, each.micro_batch_size, each.zero),
    ),
    Wish(
        "collectives over nodes",
        2,
        lambda each: each.tp == 16 and each.pp == 1,
        lambda each: (each.micro_batch_size, each.parameters, each.zero),
    ),
    Wish(
        "collectives where a pipeline spans nodes",
        2,
        lambda each: each.tp == 4 and each.pp == 2,
        lambda each: (each.micro_batch_size, each.parameters, each.zero),
    ),
    Wish(
        "stages over nodes",
        2,
        lambda each: each.tp == 1 and each.pp == 4,
        lambda each: (-each.parameters, each.micro_batch_size, each.zero),
    ),
)
"""The eight runs of a calibration: five on one node, three on two. What is chosen follows from configurations alone."""


def chosen(configurations: Sequence[Configuration]) -> list[int]:
    """Which of them a calibration runs: of each wish the first that will do and is not taken."""
    taken: list[int] = []
    for wish in WISHES:
        ranked = sorted(
            (wish.rank(each), number)
            for number, each in enumerate(configurations)
            if number not in taken and each.num_nodes == wish.num_nodes and wish.is_wanted(each)
        )
        taken += [number for _, number in ranked[:1]]
    return taken


def configuration(priced: PricedJob) -> Configuration:
    """What of a step may be known before it runs."""
    job, layout = priced.job, priced.job.layout
    return Configuration(
        priced.num_nodes,
        job.shape.num_parameters,
        layout.tp,
        layout.pp,
        layout.dp,
        job.micro_batch_size,
        priced.num_micro_batches,
        layout.zero,
    )


@dataclass(frozen=True)
class Fit:
    """What measured steps say of rates: for each name how far it moves and how sure that is, as logarithms.

    Attributes
    ----------
    covariance
        What is left of the doubt: of each name with each.
    model_error
        How far prices are off with these rates; None where there are no runs to tell.
    """

    names: Sequence[str]
    moved: Vector
    covariance: Vector
    model_error: Expectation | None = None


def calibrated(runs: Sequence[Run], known: KnownRates, profile: str) -> KnownRates:
    """The rates that are most probable after ``runs``, each with the interval that is left of its own.

    Parameters
    ----------
    profile
        Of the framework that ran.
    """
    return rates_after(fit(runs, known), known, len(runs), profile)


def fit(runs: Sequence[Run], known: KnownRates) -> Fit:
    """What ``runs`` say of the rates of :data:`FITTED`.

    The intervals of ``known`` are what is believed before: a rate on which no run depends keeps its own, and one that a
    person wrote down is not fitted. All keys of a name are moved together. A step far from its price counts less the
    farther it is.
    """
    said = {split_key(key)[0] for key, rate in known.by_key.items() if rate.origin == "file"}
    names = [name for name in FITTED if name not in said]
    believed = np.array([_deviation(name, known) for name in names])
    works = [run.work for run in runs]
    problem = _Problem(works, np.log([run.step_s for run in runs]), known, names, believed)
    moved: Vector = min((problem.descent(start) for start in problem.starts()), key=problem.improbability)
    by_runs, curvature = problem.curvatures(moved)
    model_error = None
    if works:
        explained = float(np.trace(np.linalg.solve(curvature, by_runs)))
        model_error = _at_least(known.by_key["model_error"], NOISE * problem.off(moved), explained)
    return Fit(names, moved, np.linalg.inv(curvature).astype(np.float64), model_error)


@dataclass(frozen=True)
class _Problem:
    """What a fit makes small: how far runs are from their prices, and rates from what was believed of them.

    ``measured`` is of each work, ``believed`` the standard deviation of each name, both as logarithms.
    """

    works: Sequence[StepWork]
    measured: Vector
    known: KnownRates
    names: Sequence[str]
    believed: Vector

    def starts(self) -> Iterator[Vector]:
        """As believed, and with one floor or both a deviation higher.

        A floor far below other work moves no price at all, so that from there nothing tells that it may be the cause.
        """
        for raised in ((), *((name,) for name in FLOORS), FLOORS):
            yield np.where([name in raised for name in self.names], self.believed, 0.0)

    def off(self, moved: Vector) -> Vector:
        """Of each run from its price, in units of noise."""
        off: Vector = (self.measured - _priced(self.works, self.known, self.names, moved)) / NOISE
        return off

    def improbability(self, moved: Vector) -> float:
        """Soft L1 of the runs and squares of the rates."""
        runs = 2 * (np.sqrt(1 + self.off(moved) ** 2) - 1)
        return float(np.sum(runs) + np.sum((moved / self.believed) ** 2))

    def curvatures(self, moved: Vector) -> tuple[Vector, Vector]:
        """That of the runs alone, and with what was believed."""
        slope = _slopes(self.works, self.known, self.names, moved) / NOISE
        by_runs = slope.T @ (self._weights(self.off(moved))[:, None] * slope)
        return by_runs, by_runs + np.diag(self.believed**-2)

    def descent(self, moved: Vector) -> Vector:
        """To the lowest place below ``moved``, by Gauss and Newton; a change that leads up is halved."""
        here = self.improbability(moved)
        for _ in range(_MOST_ROUNDS):
            off = self.off(moved)
            slope = _slopes(self.works, self.known, self.names, moved) / NOISE
            weighted = self._weights(off)[:, None] * slope
            curvature = slope.T @ weighted + np.diag(self.believed**-2)
            wanted = np.linalg.solve(curvature, weighted.T @ off - moved / self.believed**2)
            change = np.clip(wanted, -1.0, 1.0)
            there = self.improbability(moved + change)
            while there > here and float(np.abs(change).max()) >= _STEP:
                change = change / 2
                there = self.improbability(moved + change)
            if there > here:
                break
            moved, here = moved + change, there
            if float(np.abs(change).max()) < _STEP:
                break
        return moved

    @staticmethod
    def _weights(off: Vector) -> Vector:
        weights: Vector = 1 / np.sqrt(1 + off * off)
        return weights


def _priced(works: Sequence[StepWork], known: KnownRates, names: Sequence[str], moved: Vector) -> Vector:
    rates = rates_with(known, dict(zip(names, np.exp(moved).tolist(), strict=True)))
    return np.log([step_seconds(work, rates) for work in works])


def _slopes(works: Sequence[StepWork], known: KnownRates, names: Sequence[str], moved: Vector) -> Vector:
    """By how much a price changes with each rate, both as logarithms: ``[step, name]``."""
    here = _priced(works, known, names, moved)
    ahead = [_priced(works, known, names, moved + _STEP * unit) for unit in np.eye(len(names))]
    return np.array([(each - here) / _STEP for each in ahead]).T.reshape(len(works), len(names))


def rates_after(found: Fit, known: KnownRates, num_steps: int, profile: str) -> KnownRates:
    """``known`` with what a fit found in its place; a rate that the runs did not determine keeps its origin."""
    rates: dict[str, Expectation] = {}
    deviations = np.sqrt(np.diag(found.covariance))
    for name, moved, deviation in zip(found.names, found.moved.tolist(), deviations.tolist(), strict=True):
        of_name = {key: rate for key, rate in known.by_key.items() if split_key(key)[0] == name}
        if abs(moved) < _STEP and math.isclose(deviation, _deviation(name, known)):
            continue  # no run depends on it
        least, after = LEAST.get(name, 0.0), math.exp(TWO_SIDED_80 * deviation)
        is_left = _is_left(_spread(name, known), after)
        for key, rate in of_name.items():
            origin = rate.origin if is_left else "calibrated"
            rates[key] = replace(_moved(rate, math.exp(moved), deviation, least, num_steps), origin=origin)
    if found.model_error is not None:
        rates["model_error"] = found.model_error
    return known.but(rates, f"{known.name}, calibrated by {plural(num_steps, 'step')}", profile)


def _at_least(model_error: Expectation, off: Vector, explained: float) -> Expectation:
    """How far prices are off, by the runs themselves where that is more.

    Parameters
    ----------
    off
        Of each run, as a logarithm, from its price with the rates that were found.
    explained
        How many of the runs the rates explain whatever was measured: as many as rates are determined by them.
    """
    freedom = len(off) - explained
    if freedom < 1:
        return model_error
    factor = math.exp(TWO_SIDED_80 * math.sqrt(float(np.sum(off * off)) / freedom))
    if factor <= model_error.value:
        return model_error
    source = f"what {len(off)} runs are off from their prices"
    return replace(model_error, value=factor, low=factor, high=factor, origin="calibrated", source=source)


@dataclass(frozen=True)
class Narrowing:
    """What one more run would do: by name the factor of a rate's interval before and after it."""

    name: str
    factors: Mapping[str, tuple[float, float]]

    @property
    def words(self) -> str:
        """The rates that it would narrow most, in words."""
        ranked = sorted(self.factors.items(), key=lambda item: item[1][1] / item[1][0])
        told = [
            f"{name} from a factor of {before:.2f} to {after:.2f}"
            for name, (before, after) in ranked[:_NAMED]
            if after < _NARROWER * before
        ]
        if not told:
            return f"no other step would narrow the interval of any rate by a tenth; {self.name} comes nearest to it"
        return f"{self.name} would narrow rates most: {', '.join(told)}"


def most_narrowing(candidates: Mapping[str, StepWork], known: KnownRates, found: Fit) -> Narrowing | None:
    """Of steps that were not run the one that leaves the least doubt of all rates together; None without any.

    What it would measure does not matter for that, only how its price depends on each rate, over as far as that is in
    doubt: what hides behind something else at its value now need not do so at its end. Noise is :data:`NOISE`.
    """
    if not candidates or not len(found.names):
        return None
    slopes = _secants([*candidates.values()], known, found) / NOISE
    learned = slopes @ found.covariance
    gains = learned**2 / (1 + np.sum(learned * slopes, axis=1))[:, None]  # of each rate's variance
    best = int(np.argmax(gains.sum(axis=1)))
    before = np.diag(found.covariance)
    after = before - gains[best]
    factors = {}
    for name, was, is_left in zip(found.names, before.tolist(), after.tolist(), strict=True):
        own = _spread(name, known)  # a fit may doubt more than that of what no run depends on
        ends = (math.exp(TWO_SIDED_80 * math.sqrt(max(0.0, variance))) for variance in (was, is_left))
        first, second = (min(own, end) for end in ends)
        factors[name] = first, second
    return Narrowing([*candidates][best], factors)


def _secants(works: Sequence[StepWork], known: KnownRates, found: Fit) -> Vector:
    """As :func:`_slopes`, between a rate's value and the end of its doubt at which the price changes more."""
    here = _priced(works, known, found.names, found.moved)
    by_name = []
    for unit, deviation in zip(np.eye(len(found.names)), np.sqrt(np.diag(found.covariance)), strict=True):
        ends = [_priced(works, known, found.names, found.moved + sign * deviation * unit) for sign in (1, -1)]
        above, below = (ends[0] - here) / deviation, (here - ends[1]) / deviation
        by_name.append(np.where(np.abs(above) > np.abs(below), above, below))
    return np.array(by_name).T


def determined(known: KnownRates, found: KnownRates) -> Iterator[str]:
    """How sure each rate is now, and was before, in words: one line."""
    words = []
    for name in RATES:
        before, after = (_spread(name, of) for of in (known, found))
        if name in FITTED or after != before:
            words.append(f"{name} {after:.2f} ({before:.2f})")
    yield f"80 % intervals, as a factor to each side, and in brackets before: {', '.join(words)}"


def undetermined(known: KnownRates, found: KnownRates, runs: Sequence[Run]) -> Iterator[str]:
    """Which rates the runs left as wide as they were, and what would narrow them."""
    for name in FITTED:
        before, after = (_spread(name, of) for of in (known, found))
        if after > WIDE and _is_left(before, after) and name not in NOT_KNOWN:
            yield f"not determined: {name} ({RATES[name][1]}), still within a factor of {after:.2f}"
    if not any(run.work.pipeline_nodes > 1 and len(run.work.stages) > 1 for run in runs):
        yield (
            "not determined: pipeline_factor. A run with tp and pp over two nodes would tell it; until then layouts "
            "with both may be several times slower than priced"
        )


def _is_left(before: float, after: float) -> bool:
    """Whether the runs did not determine a rate: its interval, as a factor to each side, before and after them."""
    share = HARDLY if after > WIDE else _NARROWER
    return after > 1 + share * (before - 1)


def _deviation(name: str, known: KnownRates) -> float:
    if name in NOT_KNOWN:
        return NOT_KNOWN[name]
    return math.log(_spread(name, known)) / TWO_SIDED_80


def _spread(name: str, known: KnownRates) -> float:
    """The widest interval of a name, as a factor to each side."""
    return max(rate.spread for key, rate in known.by_key.items() if split_key(key)[0] == name)


def _moved(rate: Expectation, factor: float, deviation: float, least: float, num_steps: int) -> Expectation:
    value, spread = max(least, rate.value * factor), math.exp(TWO_SIDED_80 * deviation)
    source = f"{plural(num_steps, 'measured step')}, on {rate.source}"
    return replace(rate, value=value, low=max(least, value / spread), high=value * spread, source=source)
