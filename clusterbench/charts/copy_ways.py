from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.units import format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 16
_METRICS = {
    "device_copy": ("bandwidth_per_rank",),
    "host_copy": ("bandwidth_per_rank",),
    "gdrcopy": ("write_bandwidth", "read_bandwidth"),
    "nvbandwidth": ("bandwidth", "bandwidth_both"),
}
_PROGRAMS = ("gdrcopy", "nvbandwidth")

Ways = Mapping[str, Row]
"""The row of the best size and host of each way, the best first."""


class CopyWays(Chart[dict[str, Ways]]):
    """Copies within a GPU, between it and its host and between GPUs, each way at its best.

    How to read it
    --------------
    Each bar is the best size of one way, on the host where it is best. gdrcopy is a thread of the CPU that writes to
    and reads from GPU memory through a mapping, which suits small messages and is slow in reading; nvbandwidth is
    NVIDIA's program, by copy engines (ce) or by kernels (sm). Where it carries more than copies of torch, those wait
    for something else. Ticks are what the data sheet allows. Both directions at once count the bytes of both.
    """

    title: ClassVar[str] = "Ways to copy, each at its best"
    section: ClassVar[Section] = "host"
    after: ClassVar[str] = "copy_rates"

    def select(self, reading: Reading) -> dict[str, Ways] | None:
        rows = [row for row in reading.rows_of(*chain(*_METRICS.values())) if _is_a_copy(row)]
        if len({row.run for row in rows}) > 1:
            return None
        sizes: dict[str, set[object]] = defaultdict(set)
        for row in rows:
            sizes[row.benchmark].add(row.point.get("size_bytes"))
        ways: dict[str, dict[str, Row]] = defaultdict(dict)
        for row in rows:
            if row.benchmark in _PROGRAMS or len(sizes[row.benchmark]) == 1:  # of more sizes there are curves
                best = ways[_where(row)].get(name := _name(row))
                if best is None or _value(row) > _value(best):
                    ways[_where(row)][name] = row
        return {where: dict(sorted(of.items(), key=lambda way: -_value(way[1]))) for where, of in ways.items()} or None

    def draw(self, data: dict[str, Ways]) -> list[Panel]:
        panels = []
        for where, ways in data.items():
            rows = [*ways.values()]
            expected = {"bandwidth": [row.expected for row in rows]} if any(row.expected for row in rows) else None
            values = {"bandwidth": [row.value for row in rows]}
            cases = [row.case for row in rows]
            panels.append(Bars(where, [*ways], values, "B/s", expected=expected, cases=cases, most=MOST).panel())
        return panels

    def answer(self, data: dict[str, Ways]) -> str:
        said = []
        for where, ways in data.items():
            name, row = next(iter(ways.items()))
            said.append(f"{where[0].lower()}{where[1:]} {format_value(_value(row), 'B/s')} ({name})")
        return f"Copies reach at most: {'; '.join(said)}."

    def left_out(self, data: dict[str, Ways]) -> str:
        return bars_note([len(ways) for ways in data.values()], MOST, "fastest", "a panel")


def _is_a_copy(row: Row) -> bool:
    return row.value is not None and row.metric in _METRICS.get(row.benchmark, ())


def _value(row: Row) -> float:
    return row.value or 0.0


def _where(row: Row) -> str:
    test = str(row.point.get("test", ""))
    if row.benchmark == "device_copy" or "local_copy" in test:
        return "Within a GPU"
    return "Between GPUs of a host" if "device_to_device" in test else "Between a GPU and its host"


def _name(row: Row) -> str:
    point = row.point
    words: Sequence[str]
    if row.benchmark == "device_copy":
        words = [f"{point['operation']}", plural(row.world_size, "rank")]
    elif row.benchmark == "host_copy":
        who = "one rank alone" if point["ranks"] == "one" else f"{plural(row.world_size, 'rank')} at once"
        words = [str(point["direction"]).replace("_", " "), str(point["memory"]), who]
    elif row.benchmark == "gdrcopy":
        words = ["gdrcopy", "host to device" if row.metric.startswith("write") else "device to host"]
    else:
        words = ["nvbandwidth", str(point["test"]), *(["both ways"] if row.metric.endswith("both") else [])]
    return ", ".join(words)
