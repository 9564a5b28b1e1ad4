"""rccl-tests' results as JSON (``-Z json -x FILE``): a record for each size, out of place and in place.

Source: ROCm/rccl-tests, ``src/common.cu``. Times in us, bandwidths in GB/s of 1e9; ``wrong`` is a word, ``N/A`` where
results were not checked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from clusterbench.errors import ToolError

_KEYS = ("name", "ranks", "size", "inPlace", "time", "algBw", "busBw", "wrong")


@dataclass(frozen=True)
class RcclRecord:
    """One half of a row. ``wrong`` counts wrong elements; None where results were not checked."""

    collective: str
    size_bytes: int
    in_place: bool
    time_s: float
    wrong: int | None


def is_rccl_tests(text: str) -> bool:
    """Whether a text has records of it."""
    return all(f'"{key}"' in text for key in ("ranksPerNode", "busBw", "inPlace", "wrong"))


def parse(text: str) -> tuple[RcclRecord, ...]:
    """Every record of a list, or of lines with a record each.

    Raises
    ------
    ToolError
        If one is no JSON, or lacks a figure.
    """
    body = text.strip()
    if not body.startswith("["):
        body = f"[{','.join(line.strip().rstrip(',') for line in body.splitlines() if line.strip())}]"
    try:
        records = json.loads(body)
    except ValueError as error:
        raise ToolError(f"rccl-tests wrote JSON that cannot be read: {error}") from None
    if not records:
        raise ToolError("rccl-tests wrote no record")
    return tuple(_record(record) for record in records)


def _record(record: Any) -> RcclRecord:
    if not isinstance(record, dict) or not {*_KEYS} <= record.keys():
        raise ToolError(f"rccl-tests wrote a record that cannot be read: {str(record)[:120]}")
    wrong = str(record["wrong"])
    try:
        count = None if wrong in ("N/A", "None", "-1") else int(float(wrong))
        time_s = float(record["time"]) / 1e6
        return RcclRecord(str(record["name"]), int(record["size"]), bool(int(record["inPlace"])), time_s, count)
    except (ValueError, OverflowError):
        raise ToolError(f"rccl-tests wrote a record that cannot be read: {str(record)[:120]}") from None
