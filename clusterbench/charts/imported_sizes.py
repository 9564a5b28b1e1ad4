from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 6
_SHOWN = {"bandwidth": ("Bandwidth", "B/s"), "latency": ("Latency", "s")}


@dataclass(frozen=True)
class Curves:
    """Those of each metric."""

    bandwidth: list[Series]
    latency: list[Series]


class ImportedSizes(Chart[Curves]):
    """What another tool measured by message size.

    How to read it
    --------------
    Sizes and rates are what the source calls so: of a collective by MPI the size of what one call was given, not what
    went over a link. Both axes are logarithmic. Of latencies with several statistics the average is drawn; the others
    are in the table of cases.
    """

    title: ClassVar[str] = "Bandwidth and latency by message size, as imported"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "busbw_by_size"

    def select(self, reading: Reading) -> Curves | None:
        shown = [row for row in reading.rows_of(*_SHOWN) if _is_of_a_size(row)]
        ranks = {row.world_size for row in shown}
        marks: dict[str, dict[str, list[Mark]]] = {metric: defaultdict(list) for metric in _SHOWN}
        for row in shown:
            name = f"{row.point['test']}, {row.world_size} ranks" if len(ranks) > 1 else str(row.point["test"])
            marks[row.metric][name].append(mark(float(row.point["size_bytes"]), row))
        bandwidth, latency = (
            [Series(name, tuple(sorted(of, key=lambda mark: mark.x))) for name, of in curves.items() if len(of) > 1]
            for curves in marks.values()
        )
        return Curves(bandwidth, latency) if bandwidth or latency else None

    def draw(self, data: Curves) -> list[Panel]:
        return [
            Lines(title, curves[:MOST], unit, _ticks(curves), x_label="message size", logarithmic=True).panel()
            for (title, unit), curves in zip(_SHOWN.values(), (data.bandwidth, data.latency), strict=True)
            if curves
        ]

    def answer(self, data: Curves) -> str:
        words = [
            f"{curve.name} reaches {format_value(best.value or 0.0, 'B/s')} at {format_bytes(best.x)}"
            for curve in data.bandwidth[:1]
            for best in [max(curve.measured, key=lambda mark: mark.value or 0.0)]
        ]
        words += [
            f"{curve.name} takes {format_value(least.value or 0.0, 's')} at {format_bytes(least.x)}"
            for curve in data.latency[:1]
            for least in [min(curve.measured, key=lambda mark: mark.x)]
        ]
        return "; ".join(words) + "."

    def left_out(self, data: Curves) -> str:
        return curves_note(max(len(data.bandwidth), len(data.latency)), MOST, "curves")


def _is_of_a_size(row: Row) -> bool:
    is_figure = row.benchmark == "imported" and row.value is not None and not row.detail.get("statistic")
    return is_figure and bool(row.point.get("size_bytes")) and bool(row.point.get("test"))


def _ticks(curves: Sequence[Series]) -> dict[float, str]:
    return {mark.x: format_bytes(mark.x) for curve in curves[:MOST] for mark in curve.marks}
