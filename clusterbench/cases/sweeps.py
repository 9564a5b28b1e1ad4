"""What tells sweeps of message sizes apart, in few words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from clusterbench.rows import Row

_SAID_OR_FOLLOWS = frozenset(
    {"size_bytes", "busiest_elements", "dtype", "backend", "group_size", "layout", "axis", "traffic"}
)


def sweep_name(rows: Iterable[Row]) -> Callable[[Row], str]:
    """Names the sweep of a row: benchmark, ranks, axis and dtype, and what else tells it from others of the benchmark.

    Ranks and dtype are left out where all sweeps share them; of what an operation has for itself (``op``) only what
    differs between sweeps of the same one is said. Of figures of another tool the operation is what was measured.
    """
    points = {id(row.point): row for row in rows}
    values: dict[tuple[str, object], dict[str, set[object]]] = defaultdict(lambda: defaultdict(set))
    for row in points.values():
        for name in row.point.keys() - _SAID_OR_FOLLOWS - {"op"}:
            values[row.benchmark, row.point.get("op")][name].add(row.point[name])
        values[row.benchmark, None]["op"].add(row.point.get("op"))
    differing = {
        of_what: sorted(name for name, given in of_benchmark.items() if len(given) > 1)
        for of_what, of_benchmark in values.items()
    }
    ranks = {_ranks(row) for row in points.values()}
    dtypes = {str(row.point["dtype"]) for row in points.values() if row.point.get("dtype")}

    def words(row: Row) -> str:
        op = str(row.point.get("op") or "")
        is_named_by_op = row.benchmark == "imported" and op
        parts = [
            op if is_named_by_op else row.benchmark,
            *([_ranks(row)] if len(ranks) > 1 or row.point.get("axis") else []),
        ]
        parts += [str(row.point["dtype"])] if row.point.get("dtype") and len(dtypes) > 1 else []
        parts += [op] if "op" in differing[row.benchmark, None] and op and not is_named_by_op else []
        options = differing.get((row.benchmark, row.point.get("op")), ())
        told = [name for name in options if name != "op" and row.point.get(name) is not None]
        parts += [f"{name}={_short(row.point[name])}" for name in told]
        return ", ".join(parts)

    named = {number: words(row) for number, row in points.items()}
    return lambda row: named[id(row.point)]


def _ranks(row: Row) -> str:
    ranks = f"{row.world_size} ranks"
    if row.point.get("axis"):
        return f"{row.point['group_size']} of {ranks} along {row.point['axis']} of {row.point['layout']}"
    return ranks


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
