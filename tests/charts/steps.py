"""Planted training cases for the charts that read several figures of each."""

from __future__ import annotations

from clusterbench.layout import ParallelLayout
from clusterbench.rows import Row
from tests.report.synthetic import case, row

MIB = 2**20
UNITS = {
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_rank": "tokens/s",
    "peak_memory": "B",
    "memory_at_rest": "B",
    "traffic_bytes": "B",
    "bubble": "fraction",
    "mfu": "fraction",
    "hfu": "fraction",
    "expert_time": "s",
}
KEYS = {
    "peak_memory": "category",
    "memory_at_rest": "category",
    "traffic_bytes": "axis",
    "bubble": "source",
    "expert_time": "part",
    "expert_imbalance": "part",
}

Figures = dict[str, float]
"""By ``metric`` or ``metric/detail``; an expectation by ``metric/detail!``."""


def trained(layout: str, figures: Figures | None = None, *, status: str = "ok", **options: object) -> list[Row]:
    """The rows of one training case; without figures it ended as ``status``."""
    world_size = ParallelLayout.parse(layout).world_size
    point = {"shape": "tiny", "layout": layout, **options}
    planned = case(f"{layout} {sorted(options.items())}", world_size, point=point)
    if not figures:
        return [row(planned, "", None, status=status, basis="for a reason")]
    found = []
    for name, value in figures.items():
        if name.endswith("!"):
            continue
        metric, _, what = name.partition("/")
        detail = {KEYS[metric]: what} if metric in KEYS else {}
        if metric in ("mfu", "hfu"):
            detail = {"flops_convention": "palm", "peak": what}
        found.append(
            row(planned, metric, value, unit=UNITS.get(metric, "1"), detail=detail, expected=figures.get(f"{name}!"))
        )
    return found
