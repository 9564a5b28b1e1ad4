"""Collectives by nccl-tests: NCCL's own yardstick, beside what training's library measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import (
    NODES,
    Figures,
    ToolBenchmark,
    expect_sizes,
    first_ranks,
    in_folder,
    sizes_between,
    with_limit,
)
from clusterbench.errors import ToolError, WrongResult
from clusterbench.formulas.collectives import BUS_FACTOR, as_spelled_here
from clusterbench.options import option
from clusterbench.tools import nccl_tests
from clusterbench.types import MetricKind, Place, Point, Step, metric_key
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_TESTS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
)


@dataclass(frozen=True, kw_only=True)
class NcclTests(ToolBenchmark):
    """How fast NCCL's collectives are by nccl-tests, with every element checked by it.

    Without a launcher it runs on the GPUs of one node after the other. With one, ``mpirun -n 16 -host a:8,b:8``, each
    process takes one GPU; nccl-tests must be built with ``MPI=1``, or it silently runs as many single jobs, which the
    number of rows tells.
    """

    version: ClassVar[int] = 2  # before, bandwidths of small calls were in hundredths of a GB/s
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("latency", "s", "lower", "time of one call, mean over ranks and calls (part: placement)"),
        MetricKind("algbw", "B/s", "higher", "size over time (part: placement)"),
        MetricKind("busbw", "B/s", "higher", "algbw times the factor of the collective (part: placement)"),
    )
    install: ClassVar[str] = "build it from github.com/NVIDIA/nccl-tests: docs/rdma.md; option 'path' names its folder"
    absent: ClassVar[Mapping[str, str]] = {
        r"no CUDA-capable device|CUDA driver version is insufficient|libcudart\.so|libnccl\.so": "CUDA does not work",
    }

    test: str = option("all_reduce", "which collective", choices=_TESTS)
    path: str = option("", "folder of the programs; PATH is searched where it is empty")
    launcher: str = option("", "words before the program that start one process a GPU on several nodes, such as mpirun")
    nodes: str = option("each", "which nodes are measured, one by one; the first alone with a launcher", choices=NODES)
    num_gpus: int | None = option(None, "GPUs of each process; by default those of a node", minimum=1, maximum=1024)
    min_size: int = option(1024, "smallest array, whole", unit="B", minimum=1, maximum=2**40)
    max_size: int = option(2**30, "largest array, whole", unit="B", minimum=1, maximum=2**40)
    factor: int = option(8, "each size is so many times the one before", minimum=2, maximum=1024)
    calls: int = option(20, "timed calls of each run", minimum=1, maximum=1_000_000)
    warmup_calls: int = option(5, "calls before them", minimum=0, maximum=1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_sizes(self.min_size, self.max_size)

    def points(self, place: Place) -> Iterable[Point]:
        num_gpus = self.num_gpus or (1 if self.launcher else place.cluster.ranks_per_node)
        for runner in first_ranks(place, "first" if self.launcher else self.nodes):
            for size_bytes in sizes_between(self.min_size, self.max_size, self.factor):
                point = {
                    "size_bytes": size_bytes,
                    "test": self.test,
                    "path": self.path,
                    "launcher": self.launcher,
                    "num_gpus": num_gpus,
                    "calls": self.calls,
                    "warmup_calls": self.warmup_calls,
                    "runner": runner,
                }
                yield with_limit(self, point)

    def label(self, point: Point) -> str:
        how = "launched" if point["launcher"] else f"on{point['runner']}"
        return f"{point['test']}-{format_bytes(point['size_bytes'])}-{point['num_gpus']}gpus-{how}"

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # the ranks themselves move nothing; what NCCL moves has the program's own limit

    @classmethod
    def cost(cls, point: Point) -> float:
        return float(point["size_bytes"])

    @classmethod
    def program_of(cls, point: Point) -> str:
        return in_folder(str(point["path"]), f"{point['test']}_perf")

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        words = ["-b", str(point["size_bytes"]), "-e", str(point["size_bytes"]), "-g", str(point["num_gpus"])]
        words += ["-n", str(point["calls"]), "-w", str(point["warmup_calls"]), "-c", "1"]
        return cls.alone(rig, point, words)

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        table = nccl_tests.parse(text)
        name, size_bytes = f"{point['test']}_perf", int(point["size_bytes"])
        if len(table.rows) != 1:
            raise ToolError(f"{name} was asked for one size and printed {len(table.rows)} rows")
        (row,) = table.rows
        if not row.size_bytes:
            raise ToolError(f"{name} made no whole element a rank of {size_bytes} bytes: ask for larger arrays")
        if row.size_bytes > size_bytes or 2 * row.size_bytes <= size_bytes:  # rounded down to what divides by the ranks
            raise ToolError(f"{name} was asked for {size_bytes} bytes and measured {row.size_bytes}")
        wrong = sum(placement.wrong or 0 for placement in (row.out_of_place, row.in_place))
        if table.out_of_bounds or wrong:
            raise WrongResult(
                f"{name} gave wrong results: {wrong} wrong elements, {table.out_of_bounds} checks failed",
                {"wrong_elements": float(wrong), "failed_checks": float(table.out_of_bounds)},
            )
        num_ranks = nccl_tests.num_ranks(text) if point["launcher"] else int(point["num_gpus"])
        factor = BUS_FACTOR[as_spelled_here(str(point["test"]))](num_ranks) if num_ranks else 0.0
        row = nccl_tests.unrounded(row, factor)
        figures: dict[str, float] = {}
        for part, placement in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
            figures[metric_key("latency", part=part)] = placement.time_s
            figures[metric_key("algbw", part=part)] = placement.algbw
            figures[metric_key("busbw", part=part)] = placement.busbw
        return figures
