"""NVSHMEM's perftests, as they print with ``NVSHMEM_MACHINE_READABLE_OUTPUT=1``.

Source: NVIDIA/nvshmem, ``perftest/common/utils.cu``: ``&&&& PERF job___scope___size__BYTES___what VALUE +UNIT``, where
the sign says which direction is better. GB/sec is of 1e9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, positive, whole_lines

_LINE = re.compile(r"&&&& PERF (\w+?)___(\w+?)___size__(\d+)___(\w+) (\S+) [+-](\S+)")
_UNITS = {"GB/sec": ("B/s", 1e9), "us": ("s", 1e-6), "MMPS": ("1/s", 1e6), "MOPS": ("1/s", 1e6)}


@dataclass(frozen=True)
class NvshmemFigure:
    """``scope`` is who issues the message (``thread``, ``warp``, ``block``, ``none``); ``unit`` is B/s, s or 1/s."""

    job: str
    scope: str
    size_bytes: int
    value: float
    unit: str


def parse(text: str) -> tuple[NvshmemFigure, ...]:
    """Every line of figures.

    Raises
    ------
    ToolError
        If there is none, one cannot be read or has an unknown unit, or one figure is printed twice.
    """
    figures: dict[tuple[str, str, int, str], NvshmemFigure] = {}
    for line in whole_lines(text):
        if "&&&& PERF" not in line:
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or match[6] not in _UNITS:
            raise ToolError(f"NVSHMEM's perftest printed a line that cannot be read: {line.strip()!r}")
        unit, factor = _UNITS[match[6]]
        value = positive("NVSHMEM's perftest", match[5], line) * factor
        figure = NvshmemFigure(match[1], match[2].lower(), int(match[3]), value, unit)
        key = (figure.job, figure.scope, figure.size_bytes, unit)
        if key in figures:
            raise ToolError(f"NVSHMEM's perftest printed one figure twice: {line.strip()!r}")
        figures[key] = figure
    if not figures:
        raise ToolError(f"NVSHMEM's perftest printed no figures: {end_of(text)}")
    return tuple(figures.values())
