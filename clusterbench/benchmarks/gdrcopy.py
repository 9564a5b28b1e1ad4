"""A CPU's own copies to and from GPU memory, by gdrcopy: network libraries use them for small messages."""

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
    sizes_between,
    with_limit,
)
from clusterbench.errors import ToolError
from clusterbench.options import option
from clusterbench.tools import gdrcopy
from clusterbench.types import MetricKind, Place, Point, Step, metric_key
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_PAGE_BYTES = 2**16
"""Of GPU memory as it is mapped; gdrcopy rounds its buffers up to them."""


@dataclass(frozen=True, kw_only=True)
class Gdrcopy(ToolBenchmark):
    """How fast a CPU writes and reads mapped GPU memory, node by node.

    ``copybw`` runs once a size; ``copylat`` measures every power of two up to ``max_size`` in one run, told apart by
    ``part``. Its latencies are those of the call: a write may not have reached the GPU yet. Times are means up to
    gdrcopy 2.5, and medians from 2.6 on.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("write_bandwidth", "B/s", "higher", "bytes per second from host to GPU memory, by one CPU thread"),
        MetricKind("read_bandwidth", "B/s", "higher", "bytes per second from GPU to host memory, by one CPU thread"),
        MetricKind("write_latency", "s", "lower", "time of one call to write so many bytes (part), mean or median"),
        MetricKind("read_latency", "s", "lower", "time of one call to read so many bytes (part), mean or median"),
        MetricKind("round_trip", "s", "lower", "CPU writes a flag and the GPU answers, mean or median"),
    )
    install: ClassVar[str] = "build gdrcopy and load its module gdrdrv: docs/rdma.md"
    absent: ClassVar[Mapping[str, str]] = {
        r"gdrdrv|gdr_open": "gdrcopy's module gdrdrv is not loaded, see docs/rdma.md,",
        r"CUDA_ERROR_NO_DEVICE|no CUDA-capable device|libcuda\.so": "there is no GPU",
    }

    test: str = option("copybw", "which of gdrcopy's programs", choices=("copybw", "copylat", "pplat"))
    gpu_index: int = option(0, "GPU, by CUDA's index", minimum=0, maximum=255)
    nodes: str = option("each", "which nodes are measured, one after the other", choices=NODES)
    min_size: int = option(2**12, "smallest copy, of copybw only", unit="B", minimum=1, maximum=2**32)
    max_size: int = option(2**24, "largest copy; pplat has none", unit="B", minimum=1, maximum=2**32)
    factor: int = option(16, "each size is so many times the one before", minimum=2, maximum=1024)
    writes: int = option(1000, "writes of each size", minimum=1, maximum=10_000_000)
    reads: int = option(100, "reads of each size, which are slower", minimum=1, maximum=10_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_sizes(self.min_size, self.max_size)

    def points(self, place: Place) -> Iterable[Point]:
        sizes: dict[str, Iterable[int | None]] = {
            "copybw": sizes_between(self.min_size, self.max_size, self.factor),
            "copylat": [self.max_size],
            "pplat": [None],
        }
        test_sizes = list(sizes[self.test])
        for runner in first_ranks(place, self.nodes):
            for size_bytes in test_sizes:
                point = {
                    "size_bytes": size_bytes,
                    "test": self.test,
                    "gpu_index": self.gpu_index,
                    "writes": self.writes,
                    "reads": self.reads,
                    "runner": runner,
                }
                yield with_limit(self, point)

    def label(self, point: Point) -> str:
        size = [] if point["size_bytes"] is None else [format_bytes(point["size_bytes"])]
        return "-".join([str(point["test"]), *size, f"gpu{point['gpu_index']}", f"on{point['runner']}"])

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        return 0  # nothing moves between ranks

    @classmethod
    def program_of(cls, point: Point) -> str:
        return f"gdrcopy_{point['test']}"

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        words = ["-d", str(point["gpu_index"])]
        if point["test"] != "pplat":
            words += ["-w", str(point["writes"]), "-r", str(point["reads"]), "-s", str(point["size_bytes"])]
        return cls.alone(rig, point, words)

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        if point["test"] == "pplat":
            return {"round_trip": gdrcopy.parse_pplat(text)}
        if point["test"] == "copylat":
            latency = gdrcopy.parse_copylat(text)
            pages_bytes = -(-int(point["size_bytes"]) // _PAGE_BYTES) * _PAGE_BYTES
            if not (largest := max(latency.write_s)) <= pages_bytes < 2 * largest:
                raise ToolError(f"gdrcopy_copylat was asked for {point['size_bytes']} bytes and measured {largest}")
            tables = {"write_latency": latency.write_s, "read_latency": latency.read_s}
            return {
                metric_key(name, part=format_bytes(size_bytes)): time_s
                for name, table in tables.items()
                for size_bytes, time_s in table.items()
            }
        bandwidth = gdrcopy.parse_copybw(text)
        if bandwidth.size_bytes != point["size_bytes"]:
            raise ToolError(
                f"gdrcopy_copybw was asked for {point['size_bytes']} bytes and measured {bandwidth.size_bytes}"
            )
        return {"write_bandwidth": bandwidth.write_bytes_per_s, "read_bandwidth": bandwidth.read_bytes_per_s}
