from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.cases.trained import OTHER_VIEWS, TOTAL_MEMORY, Trained, in_order, memory_parts, said, workloads
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts._memory_colours import memory_colours
from clusterbench.drawing.bars import Bars
from clusterbench.rows import Row
from clusterbench.run_folder.records import MOST as LARGEST
from clusterbench.units import format_value
from clusterbench.words import LEGIBLE, legible, plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 24
_NOT_PARTS = frozenset((*TOTAL_MEMORY, *OTHER_VIEWS))


@dataclass(frozen=True)
class Bar:
    """One case: of many few are drawn, and each tells what it holds when it is asked."""

    trained: Trained
    name: Callable[[Row], str]

    @property
    def case(self) -> str:
        return self.trained.row.case

    @property
    def status(self) -> str:
        return self.trained.row.status

    @property
    def label(self) -> str:
        return self.name(self.trained.row)

    @cached_property
    def parts(self) -> dict[str, float]:
        """The most bytes of each category."""
        sizes = {name: self.trained.value("peak_memory", name) for name in memory_parts([self.trained])}
        return {name: size for name, size in sizes.items() if size}

    @cached_property
    def expected(self) -> dict[str, float]:
        """What was expected of each category."""
        sizes = {name: self.trained.expected("peak_memory", name) for name in memory_parts([self.trained])}
        return {name: size for name, size in sizes.items() if size}

    @cached_property
    def total(self) -> float | None:
        """The most of all of them at one moment."""
        return self.trained.whole_memory()


@dataclass(frozen=True)
class Capacity:
    """Bytes that a device has, of several the least; ``name`` says from which source they are known."""

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
    section: ClassVar[Section] = "step"
    is_aside: ClassVar[bool] = True

    def select(self, reading: Reading) -> Held | None:
        cases = [case for case in reading.trained_with("peak_memory") if case.row.status != "refused"]
        rows = [case.row for case in cases]
        workload, name = workloads(rows), names(rows)
        of_parts = {row.case for row in reading.rows_of("peak_memory") if row.value and _is_part(row)}
        drawn = {workload(row) for row in rows if row.case in of_parts}
        # A case that ended otherwise keeps its place among the bars of its workload, and one that ran out of memory
        # has one wherever it was: where nothing of a workload fits, that is what there is to say of its memory.
        kept = [
            Bar(case, name)
            for case in cases
            if case.row.case in of_parts
            or case.row.status == "out_of_memory"
            or (case.row.status != "ok" and workload(case.row) in drawn)
        ]
        return Held(kept, _capacity(reading)) if drawn else None

    def draw(self, data: Held) -> list[Panel]:
        shown, capacity = data.bars[:MOST], data.capacity
        names = in_order({name for bar in shown for name in bar.parts})
        return [
            Bars(
                "Peak memory per rank",
                [bar.label for bar in shown],
                {said(name): [bar.parts.get(name) for bar in shown] for name in names},
                "B",
                expected={said(name): [bar.expected.get(name) for bar in shown] for name in names},
                markers=[bar.total for bar in shown],
                marker_name="the whole",
                missing={number: bar.status for number, bar in enumerate(shown) if not bar.parts},
                cases=[bar.case for bar in shown],
                colours=memory_colours(names),
                limit=(capacity.name, capacity.size_bytes) if capacity else None,
            ).panel()
        ]

    def answer(self, data: Held) -> str:
        fullest, capacity = data.fullest, data.capacity
        if fullest is None or fullest.total is None or capacity is None:
            return ""
        lost = sum(bar.status == "out_of_memory" for bar in data.bars)
        return (
            f"{legible(fullest.label, 2 * LEGIBLE)} holds most, "
            f"{format_value(fullest.total, 'B')} on its fullest rank, "
            f"{100 * fullest.total / capacity.size_bytes:.0f} % of what the GPU has "
            f"({format_value(capacity.size_bytes, 'B')}, {_SOURCES[capacity.name]})"
        ) + (f"; {plural(lost, 'case')} ran out of memory." if lost else ".")

    def left_out(self, data: Held) -> str:
        return curves_note(len(data.bars), MOST, "cases")


_DRIVER, _DATASHEET = "capacity", "capacity as sold"
_SOURCES = {_DRIVER: "as its driver says", _DATASHEET: "as its data sheet says"}


def _capacity(reading: Reading) -> Capacity | None:
    """What the driver says of the GPUs, or else their data sheet; None on a CPU, and where neither is known."""
    cluster = reading.plan.cluster
    if cluster.device != "cuda":
        return None
    hosts = reading.environment.get("hosts")
    reported = (
        [host.get("gpus") for host in hosts.values() if isinstance(host, Mapping)] if isinstance(hosts, Mapping) else []
    )
    sizes = [
        gpu.get("memory_bytes")
        for gpus in reported
        if isinstance(gpus, list)
        for gpu in gpus
        if isinstance(gpu, Mapping)
    ]
    # No GPU has less than a megabyte: what says so is damaged.
    known = [float(size) for size in sizes if isinstance(size, (int, float)) and 2**20 < size <= LARGEST]
    if known:
        return Capacity(min(known), _DRIVER)
    # Of several runs the cluster is that of one of them.
    sheet = cluster.accelerator if len({row.run for row in reading.rows}) == 1 else None
    return Capacity(sheet.memory_bytes, _DATASHEET) if sheet and sheet.memory_bytes else None


def _is_part(row: Row) -> bool:
    return next(iter(row.detail.values()), "") not in _NOT_PARTS
