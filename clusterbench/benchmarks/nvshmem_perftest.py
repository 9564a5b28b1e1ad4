"""NVSHMEM between GPUs by its perftests: puts and gets that kernels issue themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import Figures, ToolBenchmark, expect_sizes, in_folder, sizes_between, with_limit
from clusterbench.errors import ToolError
from clusterbench.options import option
from clusterbench.tools import nvshmem
from clusterbench.types import MetricKind, Place, Point, Step, metric_key
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_METRICS = {"B/s": "bandwidth", "s": "latency", "1/s": "message_rate"}


@dataclass(frozen=True, kw_only=True)
class NvshmemPerftest(ToolBenchmark):
    """How fast kernels put into and get from another GPU's memory by NVSHMEM.

    The launcher places the two processes: ``nvshmrun -n 2 -ppn 1 -hosts a,b`` for two nodes. Sweep ``environment:
    {NVSHMEM_IB_ENABLE_IBGDA: [0, 1]}`` for who rings the NIC's doorbell, a proxy on the CPU or the GPU itself.
    ``part`` is who issues a message: a thread, a warp or a block.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("bandwidth", "B/s", "higher", "bytes per second, mean of one run (part: who issues)"),
        MetricKind("latency", "s", "lower", "time of one message, mean of one run (part: who issues)"),
        MetricKind("message_rate", "1/s", "higher", "messages per second, mean of one run (part: who issues)"),
    )
    install: ClassVar[str] = "build NVSHMEM with its perftests: docs/rdma.md; option 'path' names their folder"
    absent: ClassVar[Mapping[str, str]] = {
        r"no CUDA-capable device|CUDA driver version is insufficient|libcuda\.so": "CUDA does not work",
    }

    test: str = option(
        "put_bw",
        "what is measured",
        choices=("put_bw", "get_bw", "p_bw", "g_bw", "st_bw", "put_latency", "get_latency", "p_latency", "g_latency"),
    )
    path: str = option("", "folder of the programs, .../perftest/device/pt-to-pt; PATH is searched where it is empty")
    launcher: str = option("nvshmrun -n 2", "words before the program that start its two processes")
    min_size: int = option(1024, "smallest message", unit="B", minimum=8, maximum=2**32)
    max_size: int = option(2**22, "largest message", unit="B", minimum=8, maximum=2**32)
    factor: int = option(8, "each size is so many times the one before", minimum=2, maximum=1024)
    messages: int = option(200, "messages of each run", minimum=1, maximum=1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_sizes(self.min_size, self.max_size)

    def points(self, place: Place) -> Iterable[Point]:
        for size_bytes in sizes_between(self.min_size, self.max_size, self.factor):
            point = {
                "size_bytes": size_bytes,
                "test": self.test,
                "path": self.path,
                "launcher": self.launcher,
                "messages": self.messages,
                "runner": 0,
            }
            yield with_limit(self, point)

    def label(self, point: Point) -> str:
        return f"{point['test']}-{format_bytes(point['size_bytes'])}"

    @classmethod
    def program_of(cls, point: Point) -> str:
        return in_folder(str(point["path"]), f"shmem_{point['test']}")

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        size, messages = str(point["size_bytes"]), int(point["messages"])
        words = ["-b", size, "-e", size, "-f", "2", "-n", str(messages), "-w", str(max(1, messages // 10))]
        return cls.alone(rig, point, words, {"NVSHMEM_MACHINE_READABLE_OUTPUT": "1"})

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        figures = {}
        for figure in nvshmem.parse(text):
            if figure.size_bytes != point["size_bytes"]:
                raise ToolError(
                    f"shmem_{point['test']} was asked for {point['size_bytes']} bytes and measured {figure.size_bytes}"
                )
            figures[metric_key(_METRICS[figure.unit], part=figure.scope)] = figure.value
        quantity = "latency" if str(point["test"]).endswith("_latency") else "bandwidth"
        if not any(key.startswith(quantity) for key in figures):
            raise ToolError(f"shmem_{point['test']} printed no {quantity}, but {', '.join(figures)}")
        return figures
