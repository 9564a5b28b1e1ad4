from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 16
SLOWED = 1.1
"""How many times as long an operation takes beside others before it is called slowed."""


@dataclass(frozen=True)
class Congested:
    """A victims' operation and what neighbours did meanwhile; ``incast`` in bytes per second where they sent to one."""

    row: Row
    label: str
    tail: float | None
    incast: float | None


class Congestion(Chart[list[Congested]]):
    """How many times as long an operation takes while other nodes load the network.

    How to read it
    --------------
    Each second node is a victim, whose operation is timed alone and beside its neighbours; 1 is an operation that they
    do not slow. Small ones suffer first: they wait in queues behind the neighbours' large messages. A network that
    keeps its queues short, by congestion control or by routes that do not meet, stays near 1 in the median and in the
    tail. The diamond is the same of the 99th percentile. A job beside others, or a step whose collectives overlap, sees
    such times.
    """

    title: ClassVar[str] = "Beside neighbours: how much longer an operation takes"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "link_matrix"

    def select(self, reading: Reading) -> list[Congested] | None:
        tails = {row.case: row.value for row in reading.rows_of("congestion_impact_p99")}
        incast = {row.case: row.value for row in reading.rows_of("incast_bandwidth")}
        found = [
            Congested(row, _label(row), tails.get(row.case), incast.get(row.case))
            for row in reading.rows_of("congestion_impact")
            if row.value is not None
        ]
        return sorted(found, key=lambda each: -_impact(each)) or None

    def draw(self, data: list[Congested]) -> list[Panel]:
        return [
            Bars(
                "Beside neighbours over alone",
                [each.label for each in data],
                {"median": [each.row.value for each in data]},
                "1",
                markers=[each.tail for each in data],
                marker_name="99th percentile",
                cases=[each.row.case for each in data],
                most=MOST,
            ).panel()
        ]

    def answer(self, data: list[Congested]) -> str:
        worst = data[0]
        if _impact(worst) < SLOWED:
            said = f"No operation takes {SLOWED:g} times as long beside neighbours; the most is {_times(worst)}."
        else:
            said = f"Beside neighbours operations take up to {_times(worst)}."
        rates = [each.incast for each in data if each.incast]
        return f"{said} One receiver of many senders gets {format_value(min(rates), 'B/s')}." if rates else said

    def left_out(self, data: list[Congested]) -> str:
        return bars_note([len(data)], MOST, "worst", "a run")


def _impact(each: Congested) -> float:
    return each.row.value or 0.0


def _times(each: Congested) -> str:
    return f"{_impact(each):.2f} times as long ({each.label})"


def _label(row: Row) -> str:
    point = row.point
    victim = f"{point['victim']} of {format_bytes(point['size_bytes'])}"
    neighbours = f"{point['neighbours']} of {format_bytes(point['neighbour_size_bytes'])}"
    return f"{victim} beside {neighbours}, {point['num_units']} {point['between']}"
