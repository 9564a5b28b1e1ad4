from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import bars, legible
from clusterbench.charts._selection import OTHER_VIEWS, TOTAL_MEMORY, curves_note, names, workloads
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import Reading
from clusterbench.run_folder.records import MOST as LARGEST
from clusterbench.units import format_value

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


@dataclass(frozen=True)
class Capacity:
    """Bytes that a device has, and who says so; of several the least."""

    size_bytes: float
    name: str


@dataclass(frozen=True)
class Held:
    bars: list[Bar]
    capacity: Capacity | None = None

    @property
    def fullest(self) -> Bar | None:
        return max((bar for bar in self.bars if bar.total), key=lambda bar: bar.total or 0.0, default=None)


class Memory(Chart[Held]):
    """The most memory any rank held of each category, and of all of them at one moment.

    How to read it
    --------------
    One bar a layout. Its parts are the most that any rank held of each category, seen from live storages and not from
    a formula; a tick is where the part was expected to end. Categories peak at different moments, so the whole
    at its worst moment, the diamond and the figure beside the bar, is less than the parts together. Parameters,
    gradients and optimizer state shrink with tp; activations do so only in part, and more of them with sequence
    parallelism. The dotted line is what the GPU has. Between diamond and line lie what the allocator keeps without
    using it, the CUDA context, NCCL's buffers, and what is free.
    """

    title: ClassVar[str] = "Peak memory by category"
    place: ClassVar[int] = 20
    is_aside: ClassVar[bool] = True

    def select(self, rows: Sequence[Row]) -> Held | None:
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
        return Held(kept) if drawn else None

    def select_from(self, reading: Reading) -> Held | None:
        held = self.select(reading.rows)
        return Held(held.bars, _capacity(reading)) if held else None

    def draw(self, data: Held) -> list[Panel]:
        shown, capacity = data.bars[:MOST], data.capacity
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
                limit=(capacity.name, capacity.size_bytes) if capacity else None,
            )
        ]

    def answer(self, data: Held) -> str:
        fullest, capacity = data.fullest, data.capacity
        if fullest is None or fullest.total is None or capacity is None:
            return ""
        lost = sum(bar.status == "out_of_memory" for bar in data.bars)
        return (
            f"{legible(fullest.label)} holds most, {format_value(fullest.total, 'B')} on its fullest rank, "
            f"{100 * fullest.total / capacity.size_bytes:.0f} % of what the GPU has "
            f"({format_value(capacity.size_bytes, 'B')}, {_SOURCES[capacity.name]})"
        ) + (f"; {lost:,} {'case' if lost == 1 else 'cases'} ran out of memory." if lost else ".")

    def left_out(self, data: Held) -> str:
        return curves_note(len(data.bars), MOST, "cases")


_DRIVER, _DATASHEET = "capacity", "capacity as sold"
_SOURCES = {_DRIVER: "as its driver says", _DATASHEET: "as its data sheet says"}


def _capacity(reading: Reading) -> Capacity | None:
    """What the driver says of the GPUs, or else their data sheet; None on a CPU and where nobody says."""
    cluster = reading.plan.cluster
    if cluster.device != "cuda":
        return None
    hosts = reading.environment.get("hosts")
    every = (
        [host.get("gpus") for host in hosts.values() if isinstance(host, Mapping)] if isinstance(hosts, Mapping) else []
    )
    sizes = [
        gpu.get("memory_bytes") for gpus in every if isinstance(gpus, list) for gpu in gpus if isinstance(gpu, Mapping)
    ]
    # No GPU has less than a megabyte: what says so is damaged.
    known = [float(size) for size in sizes if isinstance(size, (int, float)) and 2**20 < size <= LARGEST]
    if known:
        return Capacity(min(known), _DRIVER)
    # Of several runs the cluster is that of one of them.
    sheet = cluster.accelerator if len({row.run for row in reading.rows}) == 1 else None
    return Capacity(sheet.memory_bytes, _DATASHEET) if sheet and sheet.memory_bytes else None


def _add(bar: Bar, row: Row) -> None:
    category = row.detail.get("category", "")
    if category in TOTAL_MEMORY:
        bar.total = row.value if bar.total is None else bar.total
    elif category not in OTHER_VIEWS:
        if row.value:
            bar.parts[category] = row.value
        if row.expected:
            bar.expected[category] = row.expected
