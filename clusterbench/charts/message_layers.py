from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.sweeps import sweep_name
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value
from clusterbench.words import Word, few

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

PROGRAMS = ("perftest", "ucx_perftest", "iperf3", "nvshmem_perftest")
BENCHMARKS = (*PROGRAMS, "mpi", "send_recv")
MOST_BARS, MOST_NAMED = 12, 3
_RATES, _TIMES = {"send_recv": "busbw"}, ("latency",)
_NO_WAY = ("server", "client", "sender", "receiver", "messages", "iterations", "warmup", "seconds", "tool_time_limit_s")
"""What tells pairs of hosts and runs apart, and no way of sending."""
MUCH_SMALLER = 16
"""Messages so many times smaller than another's best are not held against it: most of their time is latency."""


@dataclass(frozen=True)
class Layers:
    """Ways in which two ranks of a case send messages: of each the figure of its best size and pair, the best first.

    ``num_nodes`` is that of the case: with one node both ranks are on a host.
    """

    num_nodes: int
    rates: Mapping[str, Row]
    latencies: Mapping[str, Row]

    @property
    def where(self) -> str:
        return "between two hosts" if self.num_nodes > 1 else "within a host"


class MessageLayers(Chart[list[Layers]]):
    """What each program and library makes of the same wire: messages from one rank to another.

    How to read it
    --------------
    perftest speaks to the card and has the least between it and the wire; UCX, MPI, NVSHMEM and NCCL stand above it,
    plain TCP beside it. What one carries less than another over the same wire is lost between the two: in GPU memory
    that goes through the host, in a transport that was not found, in a protocol. Bars are the best size and pair of
    hosts of each way, one direction; latencies those of its quickest size, one way. Whether a single link is slow is
    said by the link matrix.
    """

    title: ClassVar[str] = "Messages between two ranks, layer by layer"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "link_matrix"
    glossary: ClassVar[tuple[Word, ...]] = (
        Word("NVSHMEM", "NVIDIA's library of messages that GPUs send by themselves, into each other's memory."),
    )

    def select(self, reading: Reading) -> list[Layers] | None:
        rows = [row for row in reading.rows_of("bandwidth", "busbw", "latency") if _is_a_message(row)]
        if not any(row.benchmark in PROGRAMS for row in rows) or len({row.run for row in rows}) > 1:
            return None
        found = [_layers(num_nodes, rows) for num_nodes in sorted({row.num_nodes for row in rows}, reverse=True)]
        return [layers for layers in found if max(len(layers.rates), len(layers.latencies)) > 1] or None

    def draw(self, data: list[Layers]) -> list[Panel]:
        panels = []
        for layers in data:
            for title, rows, unit in (
                ("Bandwidth", layers.rates, "B/s"),
                ("Latency", layers.latencies, "s"),
            ):
                if rows:
                    values = {title.lower(): [row.value for row in rows.values()]}
                    cases = [row.case for row in rows.values()]
                    labels = [_label(way, row, rows) if unit == "B/s" else way for way, row in rows.items()]
                    bars = Bars(f"{title} {layers.where}", labels, values, unit, cases=cases, most=MOST_BARS)
                    panels.append(bars.panel())
        return panels

    def answer(self, data: list[Layers]) -> str:
        return " ".join(sentence for layers in data for sentence in _sentences(layers))

    def left_out(self, data: list[Layers]) -> str:
        counts = [len(rows) for layers in data for rows in (layers.rates, layers.latencies) if rows]
        return bars_note(counts, MOST_BARS, "best", "a panel")


def _is_a_message(row: Row) -> bool:
    if row.benchmark not in BENCHMARKS or row.value is None or row.point.get("bidirectional"):
        return False
    if row.benchmark == "mpi" and row.point["op"] not in ("latency", "bandwidth"):
        return False
    return row.metric in _TIMES or row.metric == _RATES.get(row.benchmark, "bandwidth")


def _layers(num_nodes: int, rows: Iterable[Row]) -> Layers:
    own = [row._replace(point=_way(row.point)) for row in rows if row.num_nodes == num_nodes]
    name = sweep_name(own)
    rates: dict[str, list[Row]] = defaultdict(list)
    latencies: dict[str, list[Row]] = defaultdict(list)
    for row in own:
        (latencies if row.metric in _TIMES else rates)[name(row)].append(row)
    best = {way: max(of_way, key=_value) for way, of_way in rates.items()}
    quickest = {way: min(of_way, key=_value) for way, of_way in latencies.items()}
    return Layers(
        num_nodes,
        dict(sorted(best.items(), key=lambda item: -_value(item[1]))),
        dict(sorted(quickest.items(), key=lambda item: _value(item[1]))),
    )


def _way(point: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in point.items() if name not in _NO_WAY}


def _value(row: Row) -> float:
    return row.value or 0.0


def _sentences(layers: Layers) -> Iterable[str]:
    rates, latencies = [*layers.rates.items()], [*layers.latencies.items()]
    if rates:
        (name, top), *others = rates
        size = f" at {format_bytes(top.point['size_bytes'])}" if "size_bytes" in top.point else ""
        said = [f"{other} {100 * _value(row) / _value(top):.0f} %" for other, row in others if not _is_small(row, top)]
        of_it = f"; of that {few(said, MOST_NAMED)}" if said else ""
        yield f"{layers.where.capitalize()} {name} carries most, {format_value(_value(top), 'B/s')}{size}{of_it}."
    if latencies:
        quickest, *more = [f"{format_value(_value(row), 's')} ({name})" for name, row in latencies]
        to = f", the slowest {more[-1]}" if more else ""
        yield f"The quickest message takes {quickest}{to}."


def _is_small(row: Row, top: Row) -> bool:
    """Whether these are much smaller messages; a stream has no size and is none."""
    size, of_top = (each.point.get("size_bytes") for each in (row, top))
    return size is not None and of_top is not None and MUCH_SMALLER * size <= of_top


def _label(way: str, row: Row, rows: Mapping[str, Row]) -> str:
    """The way, with its size where that is why it carries little."""
    top = next(iter(rows.values()))
    return f"{way}, {format_bytes(row.point['size_bytes'])}" if _is_small(row, top) else way
