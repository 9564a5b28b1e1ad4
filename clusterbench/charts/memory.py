from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import bars
from clusterbench.charts._selection import OTHER_VIEWS, TOTAL_MEMORY, curves_note, variant, workload
from clusterbench.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 24


@dataclass
class Bar:
    """One case: bytes by category, what was expected of them, and of the whole."""

    label: str
    status: str
    workload: tuple[object, ...]
    parts: dict[str, float] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    expected_total: float | None = None

    @property
    def marker(self) -> float | None:
        if self.expected_total is not None:
            return self.expected_total
        # A sum of expectations means something only when no part is left out.
        return sum(self.expected.values()) if self.parts and self.expected.keys() >= self.parts.keys() else None


class Memory(Chart[list[Bar]]):
    """What the rank with the highest peak held at that moment, by category.

    How to read it
    --------------
    One bar a layout; its parts are what the fullest rank held when its memory peaked, seen from live storages and not
    from a formula. A diamond is the whole that was expected before the run. Parameters, gradients and optimizer state
    shrink with tp; activations shrink with tp only where sequence parallelism splits the norms and residuals as well.
    """

    title: ClassVar[str] = "Peak memory by category"
    place: ClassVar[int] = 20

    def select(self, rows: Sequence[Row]) -> list[Bar] | None:
        found: dict[str, Bar] = {}
        for row in rows:
            if row.point.get("layout") and row.metric in ("", "peak_memory") and row.status != "refused":
                bar = found.setdefault(row.case, Bar(variant(row), row.status, workload(row)))
                _add(bar, row)
        with_parts = [bar for bar in found.values() if bar.parts]
        workloads = {bar.workload for bar in with_parts}
        if len(workloads) == 1:
            for row in rows:
                if row.case in found:
                    found[row.case].label = str(row.point["layout"])
        kept = [bar for bar in found.values() if bar.parts or (bar.workload in workloads and bar.status != "ok")]
        return kept if with_parts else None

    def draw(self, data: list[Bar]) -> list[Figure]:
        shown = data[:MOST]
        names = list(dict.fromkeys(name for bar in shown for name in bar.parts))
        return [
            bars(
                "Peak memory per rank",
                [bar.label for bar in shown],
                {name.replace("_", " "): [bar.parts.get(name) for bar in shown] for name in names},
                "B",
                markers=[bar.marker for bar in shown],
                marker_name="expected",
                missing={number: bar.status for number, bar in enumerate(shown) if not bar.parts},
            )
        ]

    def left_out(self, data: list[Bar]) -> str:
        return curves_note(len(data), MOST, "cases")


def _add(bar: Bar, row: Row) -> None:
    category = row.detail.get("category", "")
    if category in TOTAL_MEMORY:
        bar.expected_total = row.expected if row.expected is not None else bar.expected_total
    elif category not in OTHER_VIEWS:
        if row.value:
            bar.parts[category] = row.value
        if row.expected:
            bar.expected[category] = row.expected
