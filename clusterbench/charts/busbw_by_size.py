from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import Mark, Series, lines, mark
from clusterbench.charts._selection import curves_note
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6


@dataclass(frozen=True)
class Sweep:
    bandwidth: list[Series]
    latency: list[Series]


class BusbwBySize(Chart[Sweep]):
    """Bus bandwidth and time of a call against message size.

    How to read it
    --------------
    Bus bandwidth rescales bytes per second by what the busiest link has to carry, so its plateau at large sizes may
    be held against one direction of a link. At small sizes the right panel counts: its floor is the latency of a
    call. Both axes are logarithmic. Hollow diamonds are expected values.
    """

    title: ClassVar[str] = "Bus bandwidth and latency by message size"
    place: ClassVar[int] = 50

    def select(self, rows: Sequence[Row]) -> Sweep | None:
        found: dict[str, dict[str, list[Mark]]] = {"busbw": defaultdict(list), "latency": defaultdict(list)}
        gaps: dict[str, list[Mark]] = defaultdict(list)
        for row in rows:
            size_bytes = row.point.get("size_bytes")
            if not isinstance(size_bytes, (int, float)) or row.status == "refused":
                continue
            if row.metric in found and row.value is not None:
                found[row.metric][_name(row)].append(mark(size_bytes, row))
            elif not row.metric:
                gaps[_name(row)].append(mark(size_bytes, row))
        if not any(len(marks) > 1 for marks in found["busbw"].values()):
            return None
        return Sweep(*([_series(name, marks, gaps) for name, marks in found[metric].items()] for metric in found))

    def draw(self, data: Sweep) -> list[Figure]:
        figures = []
        for title, series, unit in (
            ("Bus bandwidth", data.bandwidth[:MOST], "B/s"),
            ("Time of one call", data.latency[:MOST], "s"),
        ):
            ticks = {mark.x: format_bytes(mark.x) for one in series for mark in one.marks}
            if ticks:
                figures.append(lines(title, series, unit, ticks, x_label="message size", logarithmic=True))
        return figures

    def answer(self, data: Sweep) -> str:
        top, name = max(
            ((max(one.measured, key=lambda mark: mark.value or 0.0), one.name) for one in data.bandwidth),
            key=lambda pair: pair[0].value or 0.0,
        )
        return f"{name} reaches {format_value(top.value or 0.0, 'B/s')} bus bandwidth at {format_bytes(top.x)}."

    def left_out(self, data: Sweep) -> str:
        return curves_note(len(data.bandwidth), MOST, "curves")


def _name(row: Row) -> str:
    dtype = f", {row.point['dtype']}" if row.point.get("dtype") else ""
    return f"{row.benchmark}, {row.world_size} ranks{dtype}"


def _series(name: str, marks: list[Mark], gaps: dict[str, list[Mark]]) -> Series:
    # Of several points at one size (another environment, say) the first stands; all are in the table.
    first = {mark.x: mark for mark in reversed([*marks, *gaps.get(name, [])])}
    return Series(name, tuple(sorted(first.values(), key=lambda mark: mark.x)))
