"""All-reduce over every rank, from a few bytes to gigabytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import SuiteError
from clusterbench.formulas.collectives import algorithm_bandwidth, bus_bandwidth
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int32": 4}


@dataclass(frozen=True, kw_only=True)
class AllReduce(Benchmark):
    """How fast all ranks sum an array that each of them ends up holding.

    Each element has one rank that adds something to it, so the sum is known exactly in every dtype on any number of
    ranks, and every element is checked. Source of the bandwidth conventions: nccl-tests, ``doc/PERFORMANCE.md``.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("latency", "s", "lower", "time of one call, from the slowest rank"),
        MetricKind("algbw", "B/s", "higher", "size over time"),
        MetricKind("busbw", "B/s", "higher", "algbw x 2(n-1)/n, comparable with a link's rate in one direction"),
    )

    min_size: int = option(8, "smallest array, whole", unit="B", minimum=2, maximum=2**40)
    max_size: int = option(2**26, "largest array, whole", unit="B", minimum=2, maximum=2**40)
    factor: int = option(4, "each size is so many times the one before", minimum=2, maximum=1024)
    dtype: str = option("float32", "element type", choices=tuple(_ITEM_BYTES))

    def __post_init__(self) -> None:
        if self.max_size < self.min_size:
            raise SuiteError(
                f"max_size is {format_bytes(self.max_size)}, below min_size, {format_bytes(self.min_size)}: "
                "there is nothing to measure"
            )

    def points(self, place: Place) -> Iterable[Point]:
        size_bytes = self.min_size
        while size_bytes <= self.max_size:
            yield {"size_bytes": size_bytes, "dtype": self.dtype}
            size_bytes *= self.factor

    def label(self, point: Point) -> str:
        return f"{format_bytes(point['size_bytes']).replace(' ', '')}-{point['dtype']}"

    def objection(self, point: Point, place: Place) -> str | None:
        item = _ITEM_BYTES[str(point["dtype"])]
        if int(point["size_bytes"]) % item:
            return f"a size of {point['size_bytes']} B is not a whole number of {point['dtype']} elements of {item} B"
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        dtype = str(point["dtype"])
        numel = int(point["size_bytes"]) // _ITEM_BYTES[dtype]
        array = rig.full(numel, dtype, value=0)

        def check() -> Mapping[str, float]:
            mine, whole = rig.addends(numel, dtype)
            array.copy_(mine)
            rig.comm.all_reduce(array)
            evidence = rig.expect_equal("all_reduce", array, whole)
            array.zero_()  # repeated sums of anything else would run out of the dtype's range
            return evidence

        return Step(run=lambda: rig.comm.all_reduce(array), check=check)

    @classmethod
    def derive(cls, case: Case, observation: Observation) -> Iterable[Metric]:
        time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        size_bytes = int(case.point["size_bytes"])
        yield Metric("latency", "s", time.value, time.low, time.high, time.n)
        # The slow end of the time is the low end of the bandwidth.
        value, low, high = (algorithm_bandwidth(size_bytes, time_s) for time_s in (time.value, time.high, time.low))
        yield Metric("algbw", "B/s", value, low, high, time.n)
        value, low, high = (
            bus_bandwidth("all_reduce", size_bytes, time_s, case.world_size)
            for time_s in (time.value, time.high, time.low)
        )
        yield Metric("busbw", "B/s", value, low, high, time.n)
