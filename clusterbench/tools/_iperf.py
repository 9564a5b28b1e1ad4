"""A row of iperf's text, of version 2 and 3: bits have prefixes of ten, bytes of two."""

from __future__ import annotations

import re

_TEN = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TWO = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}


def rate_and_bytes(row: re.Match[str]) -> tuple[float, float]:
    """Bytes per second, and bytes, of a row with the groups ``rate``, ``unit``, ``what``, ``moved`` and ``of``."""
    per_unit = _TEN[row["unit"]] / 8 if row["what"] == "bits" else _TWO[row["unit"]]
    return float(row["rate"]) * per_unit, float(row["moved"]) * _TWO[row["of"]]
