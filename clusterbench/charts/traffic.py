from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts._traffic_colours import traffic_colours
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.types import ABOUT

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 24


class Traffic(Chart[list[Row]]):
    """Bytes a rank sends per step on each axis of the mesh, counted against the formula.

    How to read it
    --------------
    A bar is what was counted where PyTorch dispatches its collectives, weighted as bus bandwidth is: what the busiest
    link has to carry, whatever the backend makes of it. A diamond is the formula, written down before the run; it has
    to sit on the end of its bar. Only where a router decides what an axis carries (routing real) is the formula that
    of an even load, and may differ: such an axis is not judged, neither here nor in the verdict.
    """

    title: ClassVar[str] = "Traffic per step and axis, counted against the formula"
    section: ClassVar[Section] = "step"
    after: ClassVar[str] = "memory"
    is_aside: ClassVar[bool] = True

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
                    marker_name="formula, of an even load where routed" if any(map(_is_routed, shown)) else "formula",
                    cases=[row.case for row in shown],
                    colours=traffic_colours(["counted"]),
                ).panel()
            )
        return figures

    def answer(self, data: list[Row]) -> str:
        compared = [row for row in data if row.expected is not None and row.value is not None]
        held = [row for row in compared if not _is_routed(row)]
        if not held:
            return ""
        equal = sum(abs((row.value or 0.0) - (row.expected or 0.0)) <= 0.5 for row in held)
        words = f"to the byte in all {len(held):,}" if equal == len(held) else f"in {equal:,} of {len(held):,}"
        about = len(compared) - len(held)
        more = f" Not judged: {about:,} more, of which a router decides what the axis carries." if about else ""
        return f"Counted traffic equals the formula {words} comparisons.{more}"

    def left_out(self, data: list[Row]) -> str:
        fullest = max(Counter(row.detail.get("axis", "") for row in data).values())
        return curves_note(fullest, MOST, "cases of an axis")


def _is_routed(row: Row) -> bool:
    """Whether a router decides what its axis carries: diagnoses/traffic_mismatch.py leaves such axes out as well."""
    return row.basis.startswith(ABOUT)
