"""The long table: one row per figure of a case."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from clusterbench.types import Point

_CASE = (
    "run",
    "case",
    "benchmark",
    "version",
    "status",
    "shape",
    "layout",
    "num_nodes",
    "world_size",
    "hosts",
    "device",
)
DETAILS = ("category", "axis", "flops_convention", "peak", "source", "part")
_FIGURE = ("metric", *DETAILS, "unit", "value", "low", "high", "iterations", "expected", "basis")
COLUMNS = [*_CASE, *_FIGURE]
"""Columns every table has; the point's own columns follow."""


_NO_DETAIL: Mapping[str, str] = MappingProxyType({})


class Row(NamedTuple):
    """One figure. ``value`` is None where nothing could be said, and ``basis`` then says why.

    ``detail`` tells figures of one metric apart; its keys are among ``category``, ``axis``, ``flops_convention`` and
    ``peak``. A tuple, not a dataclass: a large run has half a million, and a report of it takes seconds less.
    """

    run: str
    case: str
    benchmark: str
    version: int
    status: str
    point: Point
    num_nodes: int
    world_size: int
    hosts: str
    device: str
    metric: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    iterations: int = 0
    expected: float | None = None
    basis: str = ""
    detail: Mapping[str, str] = _NO_DETAIL
