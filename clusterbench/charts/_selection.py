"""What charts ask of rows: which belong together, and what to call them."""

from __future__ import annotations

from clusterbench.rows import Row

TOTAL_MEMORY = ("", "total", "allocated")
"""Categories of ``peak_memory`` that are the whole and not a part of it."""

OTHER_VIEWS = ("reserved", "nvml")
"""Categories that measure the same memory another way."""

# These follow from the layout or are measured along it, so they do not tell two workloads apart.
_FOLLOWS_LAYOUT = {
    "layout",
    "gradient_accumulation_steps",
    "num_microbatches",
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "sp",
    "zero",
}


def workload(row: Row) -> tuple[object, ...]:
    """What is computed, whatever ranks share it: rows of one workload may be compared across layouts."""
    return (row.benchmark, *((key, value) for key, value in sorted(row.point.items()) if key not in _FOLLOWS_LAYOUT))


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
    return f"Drawn are the first {drawn} of {found} {what}; all are in the table." if found > drawn else ""
