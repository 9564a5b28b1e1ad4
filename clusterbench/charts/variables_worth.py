from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.sweeps import sweep_name
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.lines import Lines, Mark, Series
from clusterbench.rows import ENVIRONMENT_RATIO, Row, variables_of
from clusterbench.units import format_bytes
from clusterbench.words import few, plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_CURVES, MOST_SAID = 8, 6, 4
FIGURES = {"busbw": "bus bandwidth", "bandwidth": "bandwidth", "latency": "latency"}
"""By category of a ratio, the one that tells most first."""
SAME = 0.05
"""A figure that differs by less is the same: nothing changed."""
FEWEST = 0.1
"""Of all cases with figures: of fewer the run asks something else."""


@dataclass(frozen=True)
class Worth:
    """Ratios of one figure with one value of a variable over another, by operation and size of its messages.

    ``setting`` is ``NCCL_IB_DISABLE=1/0``.
    """

    setting: str
    figure: str
    curves: Mapping[str, Sequence[Row]]

    @property
    def furthest(self) -> tuple[str, Row]:
        """Of the largest messages of each operation the ratio that is furthest from 1; of latencies the smallest's."""
        ends = {name: rows[0 if self.figure == "latency" else -1] for name, rows in self.curves.items()}
        return max(ends.items(), key=lambda end: abs(math.log(_ratio(end[1]))))

    @property
    def changes(self) -> bool:
        return abs(_ratio(self.furthest[1]) - 1) > SAME

    @property
    def is_noise(self) -> bool:
        """Whether iterations differ so much that nothing may have changed."""
        _, row = self.furthest
        return row.low is not None and row.high is not None and row.low <= 1 <= row.high


class VariablesWorth(Chart[list[Worth]]):
    """What a variable of the environment is worth: a figure with one value over the same with another, by size.

    How to read it
    --------------
    Two cases of a ratio differ in this variable alone, and their results were proven alike; NCCL_IB_DISABLE=1 over 0 is
    what is left without InfiniBand. At 1 the variable changed
    nothing: the way that it forbids was not taken, as nccl_transport tells, or is worth nothing here. Below 1 a
    bandwidth is lost with the value named first, above 1 a latency is longer. Ways that a machine lacks, such as NVLink
    SHARP, show nothing but 1. The axis of ratios is logarithmic.
    """

    title: ClassVar[str] = "What each variable is worth: one value over another"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "forced_settings"

    def select(self, reading: Reading) -> list[Worth] | None:
        rows = [row for row in reading.rows_of(ENVIRONMENT_RATIO) if row.value and _size(row) is not None]
        plain = {row.benchmark for row in reading.rows_of(*FIGURES) if not variables_of(row)}  # for forced_settings
        rows = [row for row in rows if row.benchmark not in plain]
        measured = {row.case for row in reading.rows_of(*FIGURES)}
        if len({row.case for row in rows}) < FEWEST * len(measured) or not rows or len({row.run for row in rows}) > 1:
            return None
        by_setting: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            by_setting[row.detail["part"]][row.detail["category"]].append(row)
        found = []
        for setting, by_figure in by_setting.items():
            figure = next(name for name in FIGURES if name in by_figure)
            found.append(Worth(setting, figure, _curves(by_figure[figure])))
        return sorted(found, key=lambda worth: -abs(math.log(_ratio(worth.furthest[1]))))

    def draw(self, data: list[Worth]) -> list[Panel]:
        panels = []
        for worth in data[:MOST]:
            curves = [
                Series(name, tuple(Mark(float(_size(row) or 0), row.value, case=row.case) for row in rows))
                for name, rows in [*worth.curves.items()][:MOST_CURVES]
            ]
            ticks = {mark.x: format_bytes(mark.x) for curve in curves for mark in curve.marks}
            title = f"{FIGURES[worth.figure].capitalize()}, {worth.setting.replace('/', ' over ')}"
            lines = Lines(
                title, curves, "1", ticks, "message size", logarithmic=True, ideal=1.0, ideal_name="no change"
            )
            panels.append(lines.panel())
        return panels

    def answer(self, data: list[Worth]) -> str:
        changing = [worth for worth in data if worth.changes and not worth.is_noise]
        unclear = [worth.setting for worth in data if worth.changes and worth.is_noise]
        same = [worth.setting for worth in data if not worth.changes]
        said = [_sentence(worth) for worth in changing[:MOST_SAID]]
        if len(changing) > MOST_SAID:
            said.append(f"{plural(len(changing) - MOST_SAID, 'more variable')} change it less.")
        if same:
            said.append(f"Less than {100 * SAME:.0f} % is changed by {few(same)}.")
        if unclear:
            said.append(f"Iterations differ by more than what is changed by {few(unclear)}.")
        return "\n".join(said)

    def left_out(self, data: list[Worth]) -> str:
        return curves_note(len(data), MOST, "variables")


def _size(row: Row) -> float | None:
    return row.point.get("size_bytes")


def _ratio(row: Row) -> float:
    return row.value or 1.0


def _curves(rows: Sequence[Row]) -> dict[str, list[Row]]:
    plain = [
        row._replace(point={name: value for name, value in row.point.items() if name not in variables_of(row)})
        for row in rows
    ]
    name = sweep_name(plain)
    curves: dict[str, list[Row]] = defaultdict(list)
    for row in plain:
        curves[name(row)].append(row)
    return {name: sorted(rows, key=lambda row: _size(row) or 0) for name, rows in curves.items()}


def _sentence(worth: Worth) -> str:
    name, row = worth.furthest
    setting, _, first = worth.setting.rpartition("/")
    meaning = row.basis.partition(": ")[2]
    who = f"{setting} in place of {first}{f' ({meaning})' if meaning else ''}"
    where = f"{FIGURES[worth.figure]} of {name} at {format_bytes(_size(row) or 0)}"
    ratio = _ratio(row)
    if worth.figure == "latency":
        return f"{who} makes the {where} {ratio:.2f} times as long."
    return f"{who} {f'leaves {100 * ratio:.0f} % of' if ratio < 1 else f'gives {ratio:.2f} times'} the {where}."
