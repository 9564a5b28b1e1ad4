from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 24


class Traffic(Chart[list[Row]]):
    """Bytes a rank sends per step on each axis of the mesh, counted against the formula.

    How to read it
    --------------
    A bar is what was counted where PyTorch dispatches its collectives, weighted as bus bandwidth is: what the busiest
    link has to carry, whatever the backend makes of it. A diamond is the formula, written down before the run; it has
    to sit on the end of its bar.
    """

    title: ClassVar[str] = "Traffic per step and axis, counted against the formula"
    section: ClassVar[Section] = "step"
    after: ClassVar[str] = "memory"

    def select(self, reading: Reading) -> list[Row] | None:
        # An axis that is silent and was expected to be says nothing.
        counted = [row for row in reading.rows_of("traffic_bytes") if row.value or row.expected]
        return counted or None

    def draw(self, data: list[Row]) -> list[Panel]:
        name = names(data)
        figures = []
        for axis in sorted({row.detail.get("axis", "") for row in data}):
            shown = [row for row in data if row.detail.get("axis", "") == axis][:MOST]
            figures.append(
                Bars(
                    f"Axis {axis}, per rank and step",
                    [name(row) for row in shown],
                    {"counted": [row.value for row in shown]},
                    "B",
                    markers=[row.expected for row in shown],
                    cases=[row.case for row in shown],
                ).panel()
            )
        return figures

    def answer(self, data: list[Row]) -> str:
        held = [row for row in data if row.expected is not None and row.value is not None]
        if not held:
            return ""
        equal = sum(abs((row.value or 0.0) - (row.expected or 0.0)) <= 0.5 for row in held)
        if equal == len(held):
            return f"Counted traffic equals the formula to the byte in all {len(held):,} comparisons."
        return f"Counted traffic equals the formula in {equal:,} of {len(held):,} comparisons."

    def left_out(self, data: list[Row]) -> str:
        return curves_note(len({row.case for row in data}), MOST, "cases")
