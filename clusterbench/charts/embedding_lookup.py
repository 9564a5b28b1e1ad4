from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import apart
from clusterbench.cases.ranking import percent
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.units import format_value

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, UNEVEN = 24, 1.5
"""Bars, and how much more than the average one keeper is asked for before it is said."""

PARTS = {
    "sort": "sort by keeper",
    "ids": "send ids",
    "read": "read rows",
    "rows": "send rows",
    "order": "put in order",
    "gradients": "send gradients",
    "update": "update rows",
}
"""By part of a look-up, in the order of their course."""
SENDS = ("ids", "rows", "gradients")


@dataclass(frozen=True)
class LookUp:
    """One case: its latency, and seconds by part."""

    row: Row
    parts: dict[str, float]
    imbalance: float | None


class EmbeddingLookups(Chart[list[LookUp]]):
    """What looking up rows of a table costs that is cut over ranks, part by part.

    How to read it
    --------------
    A bar is one look-up of all ranks in its parts, from calls of their own with a wait behind each part; the diamond
    is the look-up as it was timed, without such waits. Ids, rows and gradients travel in all-to-alls of unequal parts,
    which end with the keeper that most rows are asked of. Where ids fall off as those of words do, asking for each once
    sends less and sorts more, and with rows in blocks one keeper has the most frequent ones.
    """

    title: ClassVar[str] = "Looking up rows of a table that is cut over ranks"
    section: ClassVar[Section] = "links"

    def select(self, reading: Reading) -> list[LookUp] | None:
        parts: dict[str, dict[str, float]] = defaultdict(dict)
        for row in reading.rows_of("part_time"):
            if row.value is not None:
                parts[row.case][row.detail["part"]] = row.value
        imbalance = {row.case: row.value for row in reading.rows_of("imbalance")}
        rows = [row for row in reading.rows_of("latency") if row.benchmark == "embedding_lookup"]
        return [LookUp(row, parts[row.case], imbalance.get(row.case)) for row in rows if row.value is not None] or None

    def draw(self, data: list[LookUp]) -> list[Panel]:
        labels = _labels(data)
        return [
            Bars(
                "Time of a look-up, slowest rank",
                labels,
                {words: [each.parts.get(part) for each in data] for part, words in PARTS.items()},
                "s",
                markers=[each.row.value for each in data],
                marker_name="as timed",
                cases=[each.row.case for each in data],
                most=MOST,
            ).panel()
        ]

    def answer(self, data: list[LookUp]) -> str:
        name = dict(zip((each.row.case for each in data), _labels(data), strict=True))
        fastest = max(data, key=_rate)
        number = format_value(_rate(fastest), "1/s").removesuffix("/s").rstrip()
        said = f"Ranks look up {number} rows/s"
        said += f" at most, with {name[fastest.row.case]}" if len(data) > 1 else ""
        if whole := sum(fastest.parts.values()):
            said += f"; sending is {percent(sum(fastest.parts.get(part, 0.0) for part in SENDS) / whole)} of the parts"
        busiest = max(data, key=lambda each: each.imbalance or 0.0)
        if busiest.imbalance is not None and busiest.imbalance >= UNEVEN:
            said += f". With {name[busiest.row.case]} one keeper is asked for {busiest.imbalance:.1f} times the average"
        return f"{said}."

    def left_out(self, data: list[LookUp]) -> str:
        return bars_note([len(data)], MOST, "first", "a run")


def _labels(data: list[LookUp]) -> list[str]:
    return apart([each.row for each in data], without=["size_bytes"])


def _rate(each: LookUp) -> float:
    return int(each.row.point["lookups"]) * each.row.world_size / (each.row.value or float("inf"))
