"""How far the figures of a case can be trusted: whether its iterations are alike, and whether ranks had a core each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clusterbench.rows import Row

TOO_FEW = 2
"""So many samples have no spread to speak of."""

MEASURES = ("time_cv", "time_max_over_median")
"""Metrics that say how far the iterations of a case differ."""

DRIFT = "warm_up_drift"
"""The metric that says how far the clocks had settled before a case was timed."""

NOT_SETTLED = "not settled"
"""Begins its basis where they had not."""

_CORES = ("cores", "num_cores", "physical_cores", "cpu_count", "cpus_allowed", "num_usable_cpus")


def is_unsteady(row: Row) -> bool:
    """Whether a row says that the iterations of its case differ too much for their median to be trusted."""
    return (
        row.metric in MEASURES
        and row.iterations > TOO_FEW
        and row.value is not None
        and row.expected is not None
        and row.value > row.expected
    )


def is_unsettled(row: Row) -> bool:
    """Whether a row says that its case was timed before its clocks had settled."""
    return row.metric == DRIFT and row.basis.startswith(NOT_SETTLED)


def cores_of(environment: Mapping[str, Any]) -> int | None:
    """The smallest number of cores any host reports, under whichever of the usual names."""
    found = [value for key, value in _walk(environment) if key in _CORES and type(value) is int and value > 0]
    return min(found, default=None)


def _walk(value: Any, key: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, key)
    else:
        yield key, value
