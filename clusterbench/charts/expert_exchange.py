from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.units import format_value
from clusterbench.words import Word, plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 16
RATES = {"rdma_bandwidth": "over RDMA", "nvl_bandwidth": "over NVLink", "bandwidth": "in all"}
"""By metric, which way the bytes went."""


class ExpertExchange(Chart[list[Row]]):
    """How fast DeepEP's kernels bring tokens to their experts and back.

    How to read it
    --------------
    Dispatch sends each token to the ranks of its experts, combine brings the results back and adds them up. Bytes are
    DeepEP's, logical ones: tokens that stay on their rank count as well, so a rate is no share of a link's. Low-latency
    kernels are made for a few tokens, as in decoding; the others for training. Every result was checked by DeepEP's own
    test before it was timed.
    """

    title: ClassVar[str] = "Dispatch and combine by DeepEP's kernels"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "message_layers"
    glossary: ClassVar[tuple[Word, ...]] = (
        Word("DeepEP", "DeepSeek's kernels that bring tokens to their experts and back, over NVLink and RDMA."),
    )

    def select(self, reading: Reading) -> list[Row] | None:
        rows = [row for row in reading.rows_of("time", *RATES) if row.benchmark == "deepep" and row.value]
        return rows if rows and len({row.run for row in rows}) == 1 else None

    def draw(self, data: list[Row]) -> list[Panel]:
        panels = []
        for title, unit in (("Logical bytes per second", "B/s"), ("Time of a call", "s")):
            rows = [row for row in data if row.unit == unit]
            if rows:
                values = {title.lower(): [row.value for row in rows]}
                cases = [row.case for row in rows]
                panels.append(Bars(title, list(map(_name, rows)), values, unit, cases=cases, most=MOST).panel())
        return panels

    def answer(self, data: list[Row]) -> str:
        rates = [row for row in data if row.metric in RATES]
        if not rates:
            return ""
        best, least = max(rates, key=_value), min(rates, key=_value)
        said = f"DeepEP carries {format_value(_value(best), 'B/s')} at most ({_name(best)})"
        to = f" and {format_value(_value(least), 'B/s')} at least ({_name(least)})" if least is not best else ""
        return f"{said}{to}, tokens that stay on their rank included."

    def left_out(self, data: list[Row]) -> str:
        counts = [sum(row.unit == unit for row in data) for unit in ("B/s", "s")]
        return bars_note([count for count in counts if count], MOST, "first", "a panel")


def _value(row: Row) -> float:
    return row.value or 0.0


def _name(row: Row) -> str:
    point = row.point
    words = [str(point["test"]).replace("_", " "), *filter(None, [str(row.detail.get("part", "")).replace("_", " ")])]
    words += [RATES[row.metric]] if row.metric in RATES else []
    words += [f"{point['num_tokens']:,} tokens a rank"]
    nodes = len(str(point["runners"]).split())
    words += [f"from rank {point['runners']}" if nodes == 1 else plural(nodes, "node")]
    return ", ".join(words)
