"""What tells sweeps of message sizes apart, in few words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from clusterbench.rows import Row

_SAID_OR_FOLLOWS = frozenset(
    {"size_bytes", "busiest_elements", "dtype", "backend", "group_size", "layout", "axis", "traffic"}
)


def sweep_name(rows: Iterable[Row]) -> Callable[[Row], str]:
    """Names the sweep of a row: benchmark, ranks, axis and dtype, and the options that not all of a benchmark share."""
    points = {id(row.point): row for row in rows}
    values: dict[str, dict[str, set[object]]] = defaultdict(lambda: defaultdict(set))
    for row in points.values():
        for name in row.point.keys() - _SAID_OR_FOLLOWS:
            values[row.benchmark][name].add(row.point[name])
    differing = {
        benchmark: [name for name, found in of_benchmark.items() if len(found) > 1]
        for benchmark, of_benchmark in values.items()
    }
    named = {number: _words(row, sorted(differing.get(row.benchmark, ()))) for number, row in points.items()}
    return lambda row: named[id(row.point)]


def _words(row: Row, differing: Iterable[str]) -> str:
    ranks = f"{row.world_size} ranks"
    if row.point.get("axis"):
        ranks = f"{row.point['group_size']} of {ranks} along {row.point['axis']} of {row.point['layout']}"
    words = [row.benchmark, ranks, str(row.point.get("dtype") or "")]
    words += [f"{name}={_short(row.point[name])}" for name in differing if name in row.point]
    return ", ".join(filter(None, words))


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
