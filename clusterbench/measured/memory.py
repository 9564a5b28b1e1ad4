"""The memory that ranks held in one step against the formula: stage by stage, each by its fullest rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from clusterbench.expected.formulas import StepFormulas
from clusterbench.expected.memory import ACTIVATIONS, DEVIATION, SCALARS_BYTES, TOTAL, is_unverified
from clusterbench.job.passes import AT_REST, RETRIES, STATES
from clusterbench.types import VOID, Case, Metric, metric_key
from clusterbench.units import format_value

WHOLE = ("total", "allocated", "reserved")
"""Categories that hold all others, so that they are void with one of them."""


_BANDS = {category: metric_key(DEVIATION, category=category) for category in (*STATES, ACTIVATIONS, TOTAL)}
_NAMES = {category: (category, category + AT_REST) for category in _BANDS}
_PLANNED = {
    **{category: metric_key("peak_memory", category=category) for category in _BANDS},
    **{category + AT_REST: metric_key("memory_at_rest", category=category) for category in _BANDS},
}
"""Category, as ranks call it -> the key of what is expected of it."""
_PLANNED_METRICS = ("peak_memory", "memory_at_rest")


class Deviation(NamedTuple):
    """What the fullest rank of a stage holds of a category, and what it should hold.

    Attributes
    ----------
    category
        With :data:`clusterbench.job.passes.AT_REST` behind it for what is there between steps.
    measured, formula
        Bytes.
    fraction, limit
        How far they are apart beyond some scalars, as a fraction of the formula, and may be; never negative.
    """

    rank: int
    category: str
    measured: float
    formula: float
    fraction: float
    limit: float

    @property
    def is_beyond(self) -> bool:
        """Whether the step holds something else than was asked for."""
        return self.fraction > self.limit

    @property
    def by(self) -> str:
        """``+100 % against the formula, which allows 2 %``."""
        off = 100 * self.measured / self.formula - 100
        return f"{off:+.3g} % against the formula, which allows {100 * self.limit:.3g} %"

    def __str__(self) -> str:
        return f"{self.what} on rank {self.rank}: {self.by}"

    @property
    def what(self) -> str:
        """``optimizer state at rest``."""
        return self.category.replace("_", " ")


def deviations(case: Case, formulas: StepFormulas, ranks: Sequence[Mapping[str, int]]) -> list[Deviation]:
    """Of each category with a band the rank that is furthest from what its stage should hold, the worst first.

    A formula is that of the fullest rank of a stage: where ranks share states unevenly, others hold less. Empty for a
    case without bands, as all were that were planned before there were any.

    Parameters
    ----------
    ranks
        What each of them saw, in rank order.
    """
    limits = {category: case.expected[key].value for category, key in _BANDS.items() if key in case.expected}
    if not ranks or not limits:
        return []
    stages = list(zip(formulas.ranks_of_stages, _held_by_stage(case, formulas), strict=True))
    found = _worst_of_each(ranks, stages, limits)
    if any(each.is_beyond for each in found) and formulas.are_of_another_step(case, *_PLANNED_METRICS):
        # by its own plan, which has the fullest of all stages, it may be right
        by_plan = _worst_of_each(ranks, [(range(len(ranks)), _planned(case))], limits)
        found = found if any(each.is_beyond for each in by_plan) else by_plan
    return sorted(found, key=lambda each: each.limit - each.fraction)


def _worst_of_each(
    ranks: Sequence[Mapping[str, int]],
    stages: Sequence[tuple[Sequence[int], Mapping[str, float]]],
    limits: Mapping[str, float],
) -> list[Deviation]:
    return [*filter(None, (_worst(ranks, stages, category, limit) for category, limit in limits.items()))]


def deviation_metrics(found: Sequence[Deviation]) -> Iterator[Metric]:
    """By category, how far the fullest ranks are from the formula."""
    for each in found:
        basis = f"differs: {each}" if each.is_beyond else ""
        yield Metric(DEVIATION, "1", each.fraction, detail=_named(each.category)[1], basis=basis)


def memory_metrics(case: Case, ranks: Sequence[Mapping[str, int]], found: Sequence[Deviation]) -> Iterator[Metric]:
    """Bytes on the fullest rank by category, without those that are void: low and high then say what was measured."""
    beyond = [each for each in found if each.is_beyond]
    if beyond and is_unverified(case):
        beyond = []
    void = {each.category.removesuffix(AT_REST): f"{VOID}{each}" for each in beyond}
    whole = next(iter(void.values()), "")
    for category in dict.fromkeys(category for memory in ranks for category in memory if category != RETRIES):
        values = [memory.get(category, 0) for memory in ranks]
        most, least = max(values), min(values)
        name, detail = _named(category)
        why = whole if category in WHOLE else void.get(detail["category"], "")
        yield Metric(name, "B", None if why else most, least, most, 1, detail, None, why)
    if retries := [memory[RETRIES] for memory in ranks if RETRIES in memory]:
        basis = "since the rank began, in proof, warm-up and timed steps; each makes the device wait"
        yield Metric(RETRIES, "1", max(retries), min(retries), max(retries), basis=basis)


@lru_cache(maxsize=4096)
def _named(category: str) -> tuple[str, Mapping[str, str]]:
    """Metric and detail of what ranks call a category: one object each for all cases."""
    name = "memory_at_rest" if category.endswith(AT_REST) else "peak_memory"
    return name, MappingProxyType({"category": category.removesuffix(AT_REST)})


def evidence(each: Deviation) -> str:
    """The two figures, to the last byte."""
    return (
        f"measured {format_value(each.measured, 'B')} ({each.measured:,.0f} B), "
        f"formula {format_value(each.formula, 'B')} ({each.formula:,.0f} B) on the fullest rank of its stage"
    )


def _held_by_stage(case: Case, formulas: StepFormulas) -> Sequence[Mapping[str, float]]:
    """Bytes that the fullest rank of each stage should hold. Without a pipeline these are the plan's own figures."""
    if formulas.job.layout.uses("pp"):
        return formulas.held
    return [_planned(case)]


def _planned(case: Case) -> Mapping[str, float]:
    return {category: case.expected[key].value for category, key in _PLANNED.items() if key in case.expected}


def _worst(
    ranks: Sequence[Mapping[str, int]],
    stages: Sequence[tuple[Sequence[int], Mapping[str, float]]],
    category: str,
    limit: float,
) -> Deviation | None:
    """Of a category the stage whose fullest rank is furthest from what it should hold."""
    worst: Deviation | None = None
    for own, held in stages:
        for name in _NAMES[category]:
            formula = held.get(name, 0.0)
            seen = [(ranks[rank][name], -rank) for rank in own if name in ranks[rank]] if formula > 0 else ()
            if seen:
                measured, rank = max(seen)
                fraction = max(0.0, abs(measured - formula) - SCALARS_BYTES) / formula
                if worst is None or fraction > worst.fraction:
                    worst = Deviation(-rank, name, measured, formula, fraction, limit)
    return worst
