from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel


class CopyRates(Chart[dict[str, list[Series]]]):
    """Bytes per second of copies within a GPU and between it and its host, against their size.

    How to read it
    --------------
    Each curve is one rank, the slowest. Small copies cost what starting them costs; the plateau is the memory's or the
    link's. A copy within a GPU counts what it reads and what it writes, both directions at once count the bytes of
    both. Where all ranks copy at once and stay below one alone, they share a switch, a socket or its memory. Hollow
    diamonds are the data sheet's upper bounds. Both axes are logarithmic.
    """

    title: ClassVar[str] = "Copies within a GPU and to its host by size"
    section: ClassVar[Section] = "host"
    after: ClassVar[str] = "product_rates"

    def select(self, reading: Reading) -> dict[str, list[Series]] | None:
        marks_of: dict[str, dict[str, list[Mark]]] = defaultdict(lambda: defaultdict(list))
        # A case without a figure has one row, without a metric: a gap.
        for row in reading.rows_of("bandwidth_per_rank", ""):
            title, name = _names(row)
            if title and row.status != "refused":
                marks_of[title][name].append(mark(row.point["size_bytes"], row))
        panels = {title: [_series(name, marks) for name, marks in curves.items()] for title, curves in marks_of.items()}
        drawn = {
            title: curves
            for title, curves in panels.items()
            if any(len(curve.marks) > 1 and curve.measured for curve in curves)
        }
        return drawn or None

    def draw(self, data: dict[str, list[Series]]) -> list[Panel]:
        figures = []
        for title, series in data.items():
            ticks = {mark.x: format_bytes(mark.x) for curve in series for mark in curve.marks}
            figures.append(Lines(title, series, "B/s", ticks, x_label="size of a copy", logarithmic=True).panel())
        return figures

    def answer(self, data: dict[str, list[Series]]) -> str:
        best = []
        for title, series in data.items():
            top, name = max((mark.value or 0.0, curve.name) for curve in series for mark in curve.measured)
            best.append(f"{title[0].lower()}{title[1:]} {format_value(top, 'B/s')} ({name})")
        return f"The most that one rank reaches: {'; '.join(best)}."


def _names(row: Row) -> tuple[str, str]:
    """Title of the panel that a row belongs to, and name of its curve; two empty texts for rows of something else."""
    point = row.point
    if row.benchmark == "device_copy":
        return "Within a GPU", f"{point['operation']}, {plural(row.world_size, 'rank')}"
    if row.benchmark == "host_copy":
        who = "one rank alone" if point["ranks"] == "one" else f"{plural(row.world_size, 'rank')} at once"
        return f"To and from the host, {who}", f"{str(point['direction']).replace('_', ' ')}, {point['memory']}"
    return "", ""


def _series(name: str, marks: list[Mark]) -> Series:
    # Of several points at one size (another environment, say) the first stands; all are in the table.
    first = {mark.x: mark for mark in reversed(marks)}
    return Series(name, tuple(sorted(first.values(), key=lambda mark: mark.x)))
