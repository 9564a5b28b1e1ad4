from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import Mark, Series, lines, mark
from clusterbench.charts._selection import curves_note, variant, workloads
from clusterbench.rows import Row

if TYPE_CHECKING:
    from clusterbench.charts._panel import Panel

MOST = 6


class ScalingEfficiency(Chart[list[Series]]):
    """Throughput per rank against that of the smallest run.

    How to read it
    --------------
    100 % means that a rank of the large run does as much work per second as a rank of the smallest one. A curve is one
    kind of layout, whatever its degrees; where several layouts of a kind use as many ranks, the best one is drawn.
    """

    title: ClassVar[str] = "Scaling efficiency against ranks"
    place: ClassVar[int] = 40

    def select(self, rows: Sequence[Row]) -> list[Series] | None:
        groups: dict[tuple[object, ...], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        measured = [row for row in rows if row.metric == "scaling_efficiency" and row.value is not None]
        workload = workloads(measured)
        for row in measured:
            groups[workload(row)][_kind(row)].append(row)
        series = []
        for kinds in groups.values():
            start = kinds.pop("", [])  # one rank: every kind of layout starts there
            prefix = f"{variant(start[0] if start else next(iter(kinds.values()))[0], ('layout',))}: "
            for kind, own in sorted(kinds.items()):
                name = (prefix if len(groups) > 1 else "") + kind
                series.append(Series(name, tuple(_best(start + own))))
        return [one for one in series if len(one.marks) > 1] or None

    def draw(self, data: list[Series]) -> list[Panel]:
        shown = data[:MOST]
        ticks = {mark.x: f"{mark.x:.0f}" for one in shown for mark in one.marks}
        return [lines("Scaling efficiency", shown, "fraction", ticks, x_label="ranks", ideal=1.0, ideal_name="100 %")]

    def answer(self, data: list[Series]) -> str:
        ends = [(max(one.measured, key=lambda mark: mark.x), one.name) for one in data[:MOST]]
        best, name = max(ends, key=lambda end: (end[0].x, end[0].value or 0.0))
        kept = f"{100 * (best.value or 0.0):.0f} %"
        return f"At {best.x:.0f} ranks the best layout, {name}, keeps {kept} of the throughput per rank."

    def left_out(self, data: list[Series]) -> str:
        return curves_note(len(data), MOST, "curves")


def _kind(row: Row) -> str:
    """The layout without its degrees: ``pp2-tp4+sp`` is a ``pp-tp+sp``."""
    return "" if row.world_size == 1 else re.sub(r"\d+", "", str(row.point.get("layout") or "ranks"))


def _best(rows: Sequence[Row]) -> list[Mark]:
    best: dict[int, Row] = {}
    for row in rows:
        before = best.get(row.world_size)
        if before is None or (row.value or 0.0) > (before.value or 0.0):
            best[row.world_size] = row
    return [mark(world_size, row) for world_size, row in sorted(best.items())]
