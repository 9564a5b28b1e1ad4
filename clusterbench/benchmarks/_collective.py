"""What collectives have in common: sizes, groups, how calls follow each other, and what becomes of a sweep."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import SuiteError
from clusterbench.formulas.collectives import ALGORITHMS, algorithm_bandwidth, algorithm_time, bus_bandwidth
from clusterbench.formulas.latency_bandwidth import FEWEST_POINTS, Segment, fit, size_at_half_peak
from clusterbench.formulas.statistics import summarise
from clusterbench.layout import AXES, RANK_ORDERS, VIEWS, ParallelLayout
from clusterbench.options import Option, option, options_of
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes, format_value

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.communicator import Communicator
    from clusterbench.engine.rig import Rig
    from clusterbench.rows import Row

ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
}
GROUPED = frozenset({"layouts", "axis", "groups", "rank_order"})
"""The options by which ranks are taken group by group, along an axis of a layout."""

_OPTIONAL = GROUPED | {"op", "root", "in_place"}
_AXES = tuple(name for name in (*AXES, *VIEWS) if name != "ends")  # of which not every rank is in a group
_SWEPT = frozenset({"size_bytes", "busiest_elements"})
_BACKEND = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True)
class Exchange:
    """One collective on this rank's buffers.

    Attributes
    ----------
    call
        The collective, once.
    fill
        Writes what is given, and into what is to be filled a value that no result has.
    verify
        Compares every element of what this rank was to get.
    rest
        After the check: leaves in the buffers what can be reduced again and again.
    """

    call: Callable[[], object]
    fill: Callable[[], object]
    verify: Callable[[], Mapping[str, float]]
    rest: Callable[[], object] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Collective(Benchmark):
    """One collective, over all ranks or along an axis of a layout, at sizes from a few bytes to gigabytes.

    ``size_bytes`` is the whole array, as nccl-tests prints it. Where the array has a part for each rank, the wanted
    size is rounded down to parts of whole elements, of at least one.

    Attributes
    ----------
    operation
        Its name, also in the table of bus factors.
    optional
        Which of the options ``op``, ``root``, ``in_place`` and those of :data:`GROUPED` it has.
    in_parts
        Whether the whole array has a part for each rank.
    """

    operation: ClassVar[str]
    optional: ClassVar[frozenset[str]] = GROUPED
    in_parts: ClassVar[bool] = False
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("latency", "s", "lower", "time of one call, from the slowest rank"),
        MetricKind("algbw", "B/s", "higher", "size over time"),
        MetricKind("busbw", "B/s", "higher", "algbw x nccl-tests' factor, comparable with a link's rate one way"),
        MetricKind("latency_floor", "s", "lower", "latency at the smallest size of the sweep"),
        MetricKind("peak_busbw", "B/s", "higher", "highest busbw of the sweep"),
        MetricKind("half_peak_size", "B", "lower", "size from which on busbw is half of its peak"),
        MetricKind("alpha", "s", "lower", "fitted time of a call without bytes, by segment of the sweep"),
        MetricKind("beta", "B/s", "higher", "fitted bytes per second of the whole array, by segment of the sweep"),
        MetricKind("fit_error", "fraction", "lower", "median distance of measured times from the fit"),
        MetricKind(
            "model_latency", "s", "neither", "time by a textbook's algorithm over links as send_recv found them"
        ),
    )

    warmup: int = option(5, "repetitions before them, run and not timed", minimum=0, maximum=1_000_000)
    min_size: int = option(8, "smallest array, whole", unit="B", minimum=2, maximum=2**40)
    max_size: int = option(2**26, "largest array, whole", unit="B", minimum=2, maximum=2**40)
    factor: float = option(4.0, "each size is so many times the one before", minimum=1.01, maximum=1024)
    dtype: str = option("float32", "element type", choices=tuple(ITEM_BYTES))
    blocking: bool = option(False, "the host waits for each call before the next, as it always does with Gloo")
    graph: bool = option(False, "each iteration replays a CUDA graph of the call")
    op: str = option("sum", "what is done with the elements", choices=("sum", "avg", "max", "min", "product"))
    root: int = option(0, "rank of each group that has the whole array", minimum=0, maximum=1_000_000)
    in_place: bool = option(False, "a rank's part lies at its place in the whole array")
    layouts: tuple[str, ...] = option(
        (), "layouts along whose axis the ranks are taken; without them all are one group"
    )
    axis: str | None = option(None, "axis of each layout whose groups communicate", choices=_AXES)
    groups: str = option("all", "groups at once, or rank 0's alone while the others wait", choices=("all", "one"))
    rank_order: str | None = option(
        None, "which ranks are neighbours, by the framework; by default megatron's", choices=tuple(RANK_ORDERS)
    )

    def __post_init__(self) -> None:
        if self.max_size < self.min_size:
            raise SuiteError(
                f"max_size is {format_bytes(self.max_size)}, below min_size, {format_bytes(self.min_size)}: "
                "there is nothing to measure"
            )

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        return {
            name: key_option
            for name, key_option in options_of(cls).items()
            if name in cls.optional or name not in _OPTIONAL
        }

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        if place.device == "cpu" and "blocking" in keys:
            yield "blocking", "every call of Gloo blocks, and each row says so"
        if self.layouts and self.axis is None:
            yield "layouts", "without 'axis' all ranks are one group"
        if not self.layouts and self.axis is not None:
            yield "axis", "an axis is one of a layout, and 'layouts' names none"
        if self.axis is None or not self.layouts:
            for name in ("groups", "rank_order"):
                if name in keys:
                    yield name, "without 'layouts' and 'axis' all ranks are one group"

    def points(self, place: Place) -> Iterable[Point]:
        for where in self.groupings(place):
            common = {**self.manner(place), **where}
            for size in self.sizes(common):
                yield {**size, **common}

    def groupings(self, place: Place) -> Iterator[dict[str, Any]]:
        """For each way to take the ranks, its part of a point, with ``group_size``."""
        if not self.layouts or self.axis is None:
            yield {"group_size": place.world_size}
            return
        for text in self.layouts:
            layout = ParallelLayout.fitting(text, place.world_size)
            yield {
                "group_size": layout.degree(self.axis),
                "layout": str(layout),
                "axis": self.axis,
                "groups": self.groups,
                "rank_order": self.rank_order or "megatron",
            }

    def manner(self, place: Place) -> dict[str, Any]:
        """A point without size and group; complete, so that workers need no options."""
        cpu = place.device == "cpu"
        options: dict[str, Any] = {
            name: getattr(self, name) for name in ("op", "root", "in_place") if name in self.optional
        }
        return {
            "dtype": self.dtype,
            "backend": _BACKEND[place.device],
            "blocking": self.blocking or cpu,
            "graph": self.graph,
            **options,
        }

    def sizes(self, common: Point) -> Iterable[Point]:
        """The sizes of a sweep, each once, as parts of a point: the wanted ones, in whole elements for every rank."""
        unit = ITEM_BYTES[str(common["dtype"])] * self.multiple(common)
        for size_bytes in dict.fromkeys(max(1, size // unit) * unit for size in self.wanted_sizes()):
            yield {"size_bytes": size_bytes}

    def multiple(self, common: Point) -> int:
        """The whole array has a multiple of so many elements."""
        return int(common["group_size"]) if self.in_parts else 1

    def wanted_sizes(self) -> Iterator[int]:
        number, size = 0, self.min_size
        while size <= self.max_size:
            yield size
            number += 1
            size = round(self.min_size * self.factor**number)

    def label(self, point: Point) -> str:
        words = [format_bytes(point["size_bytes"]).replace(" ", ""), str(point["dtype"])]
        words += [str(point["op"])] if point.get("op", "sum") != "sum" else []
        words += [f"root{point['root']}"] if point.get("root") else []
        if point.get("in_place", self._usually_in_place()) != self._usually_in_place():
            words.append("in_place" if point["in_place"] else "out_of_place")
        words += ["blocking"] if point["blocking"] and point["backend"] != "gloo" else []
        words += ["graph"] if point["graph"] else []
        if point.get("axis"):
            words += [str(point["layout"]), str(point["axis"])]
            words += ["one"] if point["groups"] == "one" else []
        return "-".join(words)

    @classmethod
    def _usually_in_place(cls) -> bool:
        return bool(options_of(cls)["in_place"].default)

    def world_size(self, point: Point, place: Place) -> int:
        return _parsed(str(point["layout"])).world_size if point.get("layout") else place.world_size

    def layout(self, point: Point) -> str | None:
        return str(point["layout"]) if point.get("layout") else None

    def objection(self, point: Point, place: Place) -> str | None:
        group_size, dtype = int(point["group_size"]), str(point["dtype"])
        if point["graph"] and place.device == "cpu":
            return "a CUDA graph needs GPUs, and these are CPU ranks"
        if (axis := point.get("axis")) is not None:
            layout = _parsed(str(point["layout"]))
            if group_size == 1 or (axis not in AXES and axis not in layout.views):
                return f"layout '{layout}' has no groups along {axis}: nothing would be sent"
        if int(point.get("root", 0)) >= group_size:
            return f"root is {point['root']}, but the ranks of a group are 0 to {group_size - 1}"
        if point.get("op") == "avg":
            return _objection_to_average(group_size, dtype, place.device)
        return None

    @classmethod
    @abstractmethod
    def exchange(cls, rig: Rig, comm: Communicator, point: Point) -> Exchange:
        """Allocates the buffers of one rank of ``comm``. Never communicates."""

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        if point.get("axis") is None:
            comm = rig.comm
        else:
            if point["groups"] == "one" and rig.rank not in _group_of_rank_0(point):
                return _waiting(rig)
            comm = rig.communicator(str(point["axis"]))
        exchange = cls.exchange(rig, comm, point)
        run, begin = _manner_of_calling(rig, exchange.call, point)

        def proven() -> Mapping[str, float]:
            exchange.fill()
            run()
            evidence = exchange.verify()
            exchange.rest()
            return evidence

        def check() -> Mapping[str, float]:
            begin()
            return proven()

        # once more behind the clock: what was timed may do less than what was proven, if only from its second call on
        return Step(run=run, check=check, confirm=lambda is_first: proven() if is_first else {})

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        size_bytes, group_size = int(case.point["size_bytes"]), int(case.point["group_size"])
        # A column of every table is called axis; that of a point would be hidden behind it.
        detail = {"axis": str(case.point["axis"])} if case.point.get("axis") else {}
        yield Metric("latency", "s", time.value, time.low, time.high, time.n, detail=detail)
        # The slow end of the time is the low end of the bandwidth.
        times_s = (time.value, time.high, time.low)
        value, low, high = (algorithm_bandwidth(size_bytes, time_s) for time_s in times_s)
        yield Metric("algbw", "B/s", value, low, high, time.n, detail=detail)
        value, low, high = (bus_bandwidth(cls.operation, size_bytes, time_s, group_size) for time_s in times_s)
        yield Metric("busbw", "B/s", value, low, high, time.n, detail=detail)

    @classmethod
    def across(cls, rows: Sequence[Row]) -> Iterable[Row]:
        sweeps = sweeps_of(rows, cls.operation)
        hops = _hops(rows) if cls.operation in ALGORITHMS else {}
        for sweep in sweeps:
            if len(sweep) > 1 and int(sweep[0].point["group_size"]) > 1:
                yield from _summary(cls.operation, sweep)
                yield from _fitted(sweep)
                if cls.operation in ALGORITHMS:
                    yield from _modelled(cls.operation, sweep, hops.get(_place(sweep[0])))


_parsed = cache(ParallelLayout.parse)


def _objection_to_average(group_size: int, dtype: str, device: str) -> str | None:
    if device == "cpu":
        return "op avg is NCCL's; Gloo has it in some releases of torch only"
    if "int" in dtype:
        return f"the average of whole numbers ({dtype}) is rounded, so that no result can be checked exactly"
    if group_size & (group_size - 1):
        return f"an average over {group_size} ranks is rounded; only that over a power of two can be checked exactly"
    return None


# On a rank


def buffers_of_root(
    rig: Rig, comm: Communicator, point: Point
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """The whole array and its parts, which only ``root`` has, and this rank's part: in place it is the root's own."""
    dtype, is_root = str(point["dtype"]), comm.rank == int(point["root"])
    numel = int(point["size_bytes"]) // ITEM_BYTES[dtype] // comm.world_size
    whole = rig.empty(comm.world_size * numel if is_root else 0, dtype)
    parts = [whole[rank * numel :][:numel] for rank in range(comm.world_size)] if is_root else []
    return whole, parts, parts[comm.rank] if point["in_place"] and is_root else rig.empty(numel, dtype)


def _group_of_rank_0(point: Point) -> list[int]:
    groups = _parsed(str(point["layout"])).groups(str(point["axis"]), str(point["rank_order"]))
    return next(group for group in groups if 0 in group)


def _waiting(rig: Rig) -> Step:
    """Iterations of a rank that takes no part: next to nothing, but no time of 0, which no record may hold."""
    idle = rig.full(1, "float32", 0)
    return Step(run=idle.zero_, check=dict)


def _manner_of_calling(
    rig: Rig, call: Callable[[], object], point: Point
) -> tuple[Callable[[], object], Callable[[], object]]:
    """One iteration, and what has to be done once before the first."""
    if not point["graph"]:
        return (_waited_for(call) if point["blocking"] and rig.device.type == "cuda" else call), lambda: None
    graphs: list[torch.cuda.CUDAGraph] = []

    def replay() -> None:
        graphs[0].replay()

    run = _waited_for(replay) if point["blocking"] else replay
    return run, lambda: graphs.append(rig.capture(call))


def _waited_for(call: Callable[[], object]) -> Callable[[], object]:
    import torch

    def run() -> None:
        call()
        torch.cuda.current_stream().synchronize()

    return run


# Rows of a sweep


def sweeps_of(rows: Sequence[Row], benchmark: str) -> list[list[Row]]:
    """The latencies of each sweep, by size: cases that differ in their size alone."""
    sweeps: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.benchmark == benchmark and row.metric == "latency" and row.value is not None:
            sweeps[_sweep(row)].append(row)
    return [sorted(sweep, key=lambda row: int(row.point["size_bytes"])) for sweep in sweeps.values()]


def _sweep(row: Row) -> tuple[object, ...]:
    same = tuple(sorted((name, value) for name, value in row.point.items() if name not in _SWEPT))
    return row.device, row.num_nodes, row.world_size, same


def _measured(sweep: Sequence[Row]) -> tuple[tuple[float, float], ...]:
    return tuple((float(row.point["size_bytes"]), row.value) for row in sweep if row.value)


def _figure(row: Row, metric: str, unit: str, value: float | None, basis: str, part: str = "") -> Row:
    """A row of the same case."""
    return row._replace(
        metric=metric,
        unit=unit,
        value=value,
        low=None,
        high=None,
        expected=None,
        basis=basis,
        detail={**row.detail, **({"part": part} if part else {})},
    )


def _summary(operation: str, sweep: Sequence[Row]) -> Iterator[Row]:
    points, group_size = _measured(sweep), int(sweep[0].point["group_size"])
    sizes = [size for size, _ in points]
    bandwidths = [bus_bandwidth(operation, int(size), time_s, group_size) for size, time_s in points]
    peak = max(bandwidths)
    at = bandwidths.index(peak)
    smallest, largest = format_bytes(sizes[0]), format_bytes(sizes[-1])
    yield _figure(sweep[0], "latency_floor", "s", points[0][1], f"at {smallest}, the smallest size")
    yield _figure(sweep[at], "peak_busbw", "B/s", peak, f"at {format_bytes(sizes[at])}, of {smallest} to {largest}")
    basis = f"between measured sizes by their logarithms; the peak is {format_value(peak, 'B/s')}"
    yield _figure(sweep[at], "half_peak_size", "B", size_at_half_peak(sizes, bandwidths), basis)


def _fitted(sweep: Sequence[Row]) -> Iterator[Row]:
    points = _measured(sweep)
    if len(points) < FEWEST_POINTS:
        why = f"{len(points)} sizes were measured, and a line through fewer than {FEWEST_POINTS} says nothing"
        yield _figure(sweep[0], "alpha", "s", None, why)
        return
    rows = {size: row for (size, _), row in zip(points, sweep, strict=True)}
    segments = fit(points)
    for number, segment in enumerate(segments, start=1):
        row, part = rows[segment.smallest], f"segment {number}"
        basis = (
            f"{number} of {len(segments)}: alpha + size / beta through {segment.num_points} sizes, "
            f"{format_bytes(segment.smallest)} to {format_bytes(segment.largest)}"
        )
        flat = "" if segment.bytes_per_s else "; time grows with size by less than the fit is off"
        yield _figure(row, "alpha", "s", segment.alpha_s, basis, part)
        yield _figure(row, "beta", "B/s", segment.bytes_per_s, basis + flat, part)
        yield _figure(row, "fit_error", "fraction", segment.error, basis, part)


# Models from textbooks


@dataclass(frozen=True)
class _Hop:
    """A message between two ranks, as the fit of a send_recv sweep has it."""

    alpha_s: float
    bytes_per_s: float


def _place(row: Row) -> tuple[object, ...]:
    """What a collective and the send_recv that stands for its links have in common."""
    names = ("group_size", "blocking", "graph", "layout", "axis", "groups", "rank_order")
    return row.device, row.num_nodes, row.world_size, *(row.point.get(name) for name in names)


def _hops(rows: Sequence[Row]) -> dict[tuple[object, ...], _Hop]:
    """Latency of the smallest messages and bandwidth of the largest, in a ring."""
    hops: dict[tuple[object, ...], _Hop] = {}
    for sweep in sweeps_of(rows, "send_recv"):
        segments: Sequence[Segment] = fit(_measured(sweep)) if sweep[0].point["pattern"] == "ring" else ()
        if segments and (bytes_per_s := segments[-1].bytes_per_s):
            hops.setdefault(_place(sweep[0]), _Hop(segments[0].alpha_s, bytes_per_s))
    return hops


def _modelled(operation: str, sweep: Sequence[Row], hop: _Hop | None) -> Iterator[Row]:
    if hop is None:
        why = "no ring of send_recv with a bandwidth was measured on these ranks in this run"
        yield _figure(sweep[0], "model_latency", "s", None, why)
        return
    alpha, beta = format_value(hop.alpha_s, "s"), format_value(hop.bytes_per_s, "B/s")
    basis = f"links with alpha {alpha} and beta {beta}, fitted to send_recv; Thakur et al. 2005, Sanders et al. 2009"
    for row in sweep:
        size_bytes, group_size = float(row.point["size_bytes"]), int(row.point["group_size"])
        for name in ALGORITHMS[operation]:
            value = algorithm_time(operation, name, size_bytes, group_size, hop.alpha_s, hop.bytes_per_s)
            yield _figure(row, "model_latency", "s", value, basis, name)
