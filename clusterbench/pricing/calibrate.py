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
from clusterbench.pricing.rates import RATES, KnownRates, rates_with
from clusterbench.pricing.work import StepWork
from clusterbench.types import split_key

FITTED = ("matmul", "attention", "memory", "operator_time", "collective_time", "pipeline_factor", "step_time")
"""Rates that measured steps determine; the others are probed."""

NOISE = 0.05
"""How far, as a logarithm, a measured step lies from the price with the right rates: about two thirds of them."""

NOT_KNOWN: Mapping[str, float] = {"pipeline_factor": math.log(4.0)}
"""Standard deviations, as logarithms, of what no datasheet tells."""

HARDLY, WIDE = 0.7, 1.15
"""A rate is not determined by the runs where its interval shrank to no less than this share, and is wider than that."""

LEAST: Mapping[str, float] = {"pipeline_factor": 1.0}
"""What a rate is at least, whatever was measured."""

_MOST_ROUNDS, _STEP = 40, 1e-4

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


def calibrated(runs: Sequence[Run], known: KnownRates, profile: str) -> KnownRates:
    """The rates that are most probable after ``runs``, each with the interval that is left of its own.

    The intervals of ``known`` are what is believed before: a rate on which no run depends keeps its own, and one that a
    person wrote down is not fitted. All keys of a name are moved together. A step far from its price counts less the
    farther it is.

    Parameters
    ----------
    profile
        Of the framework that ran.
    """
    said = {split_key(key)[0] for key, rate in known.by_key.items() if rate.origin == "file"}
    names = [name for name in FITTED if name not in said]
    believed = np.array([_deviation(name, known) for name in names])
    measured = np.log([run.step_s for run in runs])

    def priced(moved: Vector) -> Vector:
        rates = rates_with(known, dict(zip(names, np.exp(moved).tolist(), strict=True)))
        return np.log([step_seconds(run.work, rates) for run in runs])

    def slopes(moved: Vector, here: Vector) -> Vector:
        ahead = [priced(moved + _STEP * unit) for unit in np.eye(len(names))]
        return np.array([(each - here) / _STEP for each in ahead]).T

    moved = np.zeros(len(names))
    for _ in range(_MOST_ROUNDS):
        here = priced(moved)
        off = (measured - here) / NOISE
        weights = 1 / np.sqrt(1 + off * off)  # soft L1
        slope = slopes(moved, here) / NOISE
        curvature = slope.T @ (weights[:, None] * slope) + np.diag(believed**-2)
        change = np.linalg.solve(curvature, slope.T @ (weights * off) - moved / believed**2)
        moved = moved + np.clip(change, -1.0, 1.0)
        if float(np.abs(change).max()) < _STEP:
            break
    left = np.sqrt(np.diag(np.linalg.inv(curvature)))
    found: dict[str, Expectation] = {}
    for place, name in enumerate(names):
        factor, deviation = math.exp(moved[place]), float(left[place])
        of_name = {key: rate for key, rate in known.by_key.items() if split_key(key)[0] == name}
        found |= {
            key: _moved(rate, factor, deviation, LEAST.get(name, 0.0), len(runs)) for key, rate in of_name.items()
        }
    if len(runs):
        explained = float(np.trace(np.linalg.solve(curvature, slope.T @ (weights[:, None] * slope))))
        found["model_error"] = _at_least(known.by_key["model_error"], measured - priced(moved), explained)
    return known.but(found, f"{known.name}, calibrated by {len(runs)} runs", profile)


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


def undetermined(known: KnownRates, found: KnownRates, runs: Sequence[Run]) -> Iterator[str]:
    """Which rates the runs left as wide as they were, and what would narrow them."""
    for name in FITTED:
        before = [rate.spread for key, rate in known.by_key.items() if split_key(key)[0] == name]
        after = [rate.spread for key, rate in found.by_key.items() if split_key(key)[0] == name]
        is_wide = max(after) > max(WIDE, 1 + HARDLY * (max(before) - 1))
        if is_wide and name not in NOT_KNOWN:
            yield f"not determined: {name} ({RATES[name][1]}), still within a factor of {max(after):.2f}"
    if not any(run.work.pipeline_nodes > 1 and len(run.work.stages) > 1 for run in runs):
        yield (
            "not determined: pipeline_factor. A run with tp and pp over two nodes would tell it; until then layouts "
            "with both may be several times slower than priced"
        )


def _deviation(name: str, known: KnownRates) -> float:
    if name in NOT_KNOWN:
        return NOT_KNOWN[name]
    return max(math.log(rate.spread) for key, rate in known.by_key.items() if split_key(key)[0] == name) / TWO_SIDED_80


def _moved(rate: Expectation, factor: float, deviation: float, least: float, num_runs: int) -> Expectation:
    value, spread = max(least, rate.value * factor), math.exp(TWO_SIDED_80 * deviation)
    source = f"{num_runs} runs, on {rate.source}"
    return replace(
        rate, value=value, low=max(least, value / spread), high=value * spread, origin="calibrated", source=source
    )
