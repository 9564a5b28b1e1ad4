from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.units import format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel


class HostMemory(Chart[list[Series]]):
    """Bytes per second of a host's memory, all ranks together, against the number of ranks.

    How to read it
    --------------
    The four curves are STREAM's loops, counted as STREAM counts. They rise while memory channels are idle and are flat
    once all are busy; ranks beyond that share what there is. The axis of ranks is logarithmic.
    """

    title: ClassVar[str] = "Bandwidth of the host's memory by ranks"
    section: ClassVar[Section] = "host"
    after: ClassVar[str] = "copy_rates"

    def select(self, reading: Reading) -> list[Series] | None:
        marks_of: dict[str, dict[int, Mark]] = defaultdict(dict)
        for row in reading.rows_of("bandwidth"):
            if row.benchmark == "cpu_memory" and row.num_nodes == 1:
                # Of several points at one number of ranks (another size, say) the first stands.
                marks_of[str(row.point["kernel"])].setdefault(row.world_size, mark(row.world_size, row))
        series = [Series(kernel, tuple(marks[x] for x in sorted(marks))) for kernel, marks in marks_of.items()]
        return series if any(len(curve.measured) > 1 for curve in series) else None

    def draw(self, data: list[Series]) -> list[Panel]:
        ticks = {mark.x: f"{mark.x:.0f}" for curve in data for mark in curve.marks}
        return [Lines("All ranks of a host together", data, "B/s", ticks, x_label="ranks").panel()]

    def answer(self, data: list[Series]) -> str:
        value, ranks, kernel = max((mark.value or 0.0, mark.x, curve.name) for curve in data for mark in curve.measured)
        most = f"{format_value(value, 'B/s')} ({kernel})"
        return f"The host's memory carries most at {plural(round(ranks), 'rank')}: {most}."
