from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.measured.speed import LONE_RANK
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_SAID = 16, 4
TOTAL = "total"


@dataclass(frozen=True)
class Alone:
    """One rank's step with nothing sent: its time, the seconds in which its device computes, and the most it holds."""

    name: str
    row: Row
    compute_s: float | None
    peak_bytes: float | None

    @property
    def waits_s(self) -> float | None:
        """Seconds in which a GPU has nothing to do, as its host launches; None on a CPU, which launches nothing."""
        if self.row.value is None or self.compute_s is None or self.row.device != "cuda":
            return None
        return max(0.0, self.row.value - self.compute_s)


class LoneRank(Chart[list[Alone]]):
    """What one rank of a large layout takes and holds by itself, with nothing sent.

    How to read it
    --------------
    The rank computes its part of the step and its collectives return at once: what a step of the whole layout takes
    beside this is communication and waiting for others. Where a GPU computes less than the step takes, it waits for its
    host to launch operators; compiled layers launch fewer. Memory is what live tensors hold at most. None of it
    is a speed of a cluster, and nothing is proven: what is not sent cannot be right.
    """

    title: ClassVar[str] = "One rank alone: time and memory with nothing sent"
    section: ClassVar[Section] = "step"

    def select(self, reading: Reading) -> list[Alone] | None:
        rows = [row for row in reading.rows_of("rank_time") if row.benchmark == LONE_RANK and row.value]
        if not rows:
            return None
        name = names(rows)
        compute = {row.case: row.value for row in reading.rows_of("compute_time") if row.benchmark == LONE_RANK}
        peak = {
            row.case: row.value
            for row in reading.rows_of("peak_memory")
            if row.benchmark == LONE_RANK and row.detail.get("category") == TOTAL
        }
        return [Alone(name(row), row, compute.get(row.case), peak.get(row.case)) for row in rows]

    def draw(self, data: list[Alone]) -> list[Panel]:
        labels, cases = [each.name for each in data], [each.row.case for each in data]
        if all(each.waits_s is not None for each in data):
            parts = {
                "GPU computes": [each.compute_s for each in data],
                "GPU waits for its host": [each.waits_s for each in data],
            }
        else:
            parts = {"step": [each.row.value for each in data]}
        panels = [Bars("A step of the rank", labels, parts, "s", cases=cases, most=MOST).panel()]
        if any(each.peak_bytes for each in data):
            held = {"live tensors": [each.peak_bytes for each in data]}
            panels.append(Bars("The most that it holds", labels, held, "B", cases=cases, most=MOST).panel())
        return panels

    def answer(self, data: list[Alone]) -> str:
        return "\n".join(map(_sentence, data[:MOST_SAID]))

    def left_out(self, data: list[Alone]) -> str:
        return bars_note([len(data)], MOST, "first", "a run")


def _sentence(each: Alone) -> str:
    words = f"One rank of {each.name} takes {format_value(each.row.value or 0.0, 's')} for a step"
    if each.waits_s is not None and each.row.value:
        words += f", of which its GPU waits {100 * each.waits_s / each.row.value:.0f} % for its host"
    return f"{words}, and holds {format_bytes(round(each.peak_bytes))}." if each.peak_bytes else f"{words}."
