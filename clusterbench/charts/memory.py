from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import bars
from clusterbench.charts._selection import OTHER_VIEWS, TOTAL_MEMORY, curves_note, names, workloads
from clusterbench.rows import Row

if TYPE_CHECKING:
    from clusterbench.charts._panel import Panel

MOST = 24


@dataclass
class Bar:
    """One case: the most bytes of each category, what was expected of them, and the most of the whole."""

    case: str
    label: str
    status: str
    workload: tuple[object, ...]
    parts: dict[str, float] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    total: float | None = None


class Memory(Chart[list[Bar]]):
    """The most memory any rank held of each category, and of all of them at one moment.

    How to read it
    --------------
    One bar a layout. Its parts are the most that any rank held of each category, seen from live storages and not from
    a formula; a tick is where the part was expected to end. Categories peak at different moments, so the whole
    at its worst moment, the diamond and the figure beside the bar, is less than the parts together. Parameters,
    gradients and optimizer state shrink with tp; activations do so only in part, and more of them with sequence
    parallelism.
    """

    title: ClassVar[str] = "Peak memory by category"
    place: ClassVar[int] = 20

    def select(self, rows: Sequence[Row]) -> list[Bar] | None:
        steps = [row for row in rows if row.point.get("layout") and row.metric in ("", "peak_memory")]
        steps = [row for row in steps if row.status != "refused"]
        workload = workloads(steps)
        name = names(steps)
        found: dict[str, Bar] = {}
        for row in steps:
            if row.case not in found:
                found[row.case] = Bar(row.case, name(row), row.status, workload(row))
            _add(found[row.case], row)
        drawn = {bar.workload for bar in found.values() if bar.parts}
        # A case that ran out of memory keeps its place among the bars.
        kept = [bar for bar in found.values() if bar.parts or (bar.workload in drawn and bar.status != "ok")]
        return kept if drawn else None

    def draw(self, data: list[Bar]) -> list[Panel]:
        shown = data[:MOST]
        names = list(dict.fromkeys(name for bar in shown for name in bar.parts))
        return [
            bars(
                "Peak memory per rank",
                [bar.label for bar in shown],
                {name.replace("_", " "): [bar.parts.get(name) for bar in shown] for name in names},
                "B",
                expected={name.replace("_", " "): [bar.expected.get(name) for bar in shown] for name in names},
                markers=[bar.total for bar in shown],
                marker_name="the whole",
                missing={number: bar.status for number, bar in enumerate(shown) if not bar.parts},
                cases=[bar.case for bar in shown],
            )
        ]

    def left_out(self, data: list[Bar]) -> str:
        return curves_note(len(data), MOST, "cases")


def _add(bar: Bar, row: Row) -> None:
    category = row.detail.get("category", "")
    if category in TOTAL_MEMORY:
        bar.total = row.value if bar.total is None else bar.total
    elif category not in OTHER_VIEWS:
        if row.value:
            bar.parts[category] = row.value
        if row.expected:
            bar.expected[category] = row.expected
