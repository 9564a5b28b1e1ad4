"""What charts ask of rows: which belong together, and what to call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clusterbench.rows import Row

TOTAL_MEMORY = ("", "total", "allocated")
"""Categories of ``peak_memory`` that are the whole and not a part of it."""

OTHER_VIEWS = ("reserved", "nvml")
"""Categories that measure the same memory another way."""

FOLLOWS_LAYOUT = frozenset(
    ("layout", "gradient_accumulation_steps", "num_microbatches", "pp", "dp", "cp", "tp", "sp", "ep", "zero")
)
"""Options that follow from the layout, so they do not tell two workloads apart."""


def workloads(rows: Iterable[Row]) -> Callable[[Row], tuple[object, ...]]:
    """Tells what a row of ``rows`` computes, whatever ranks share it; equal workloads may be compared across layouts.

    An option that only some of the layouts have (one of tensor parallelism, say) does not tell two workloads apart.
    """
    common: dict[str, set[str]] = {}
    points = {id(row.point): row for row in rows}
    for row in points.values():
        common.setdefault(row.benchmark, set(row.point)).intersection_update(row.point)
    names = {benchmark: sorted(shared - FOLLOWS_LAYOUT) for benchmark, shared in common.items()}
    # Rows of a case share one point object; what is known of it is looked up by what it is, not by what it holds.
    known = {
        number: (row.benchmark, *(row.point[name] for name in names[row.benchmark])) for number, row in points.items()
    }
    return lambda row: known[id(row.point)]


def variant(row: Row, without: tuple[str, ...] = ()) -> str:
    """A short name for what a row measured."""
    parts = [str(row.point[key]) for key in ("shape", "layout") if row.point.get(key) and key not in without]
    for key, short in (("seq_len", "seq"), ("micro_batch_size", "mbs"), ("global_batch_size", "gbs")):
        if row.point.get(key) is not None:
            parts.append(f"{short} {row.point[key]}")
    if row.point.get("dtype"):
        parts.append(str(row.point["dtype"]))
    return ", ".join(parts) or row.benchmark


def curves_note(found: int, drawn: int, what: str) -> str:
    return f"Drawn are the first {drawn} of {found:,} {what}; all are in the table." if found > drawn else ""
