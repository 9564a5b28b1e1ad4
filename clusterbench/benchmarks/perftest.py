"""RDMA between two NICs by perftest: writes, reads and sends, from host memory or from a GPU's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import (
    PAIRS,
    WHICH_NODES,
    Figures,
    ToolBenchmark,
    expect_sizes,
    pairs_of,
    sizes_between,
    with_limit,
)
from clusterbench.errors import ToolError
from clusterbench.options import option
from clusterbench.tools import perftest
from clusterbench.types import MetricKind, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

NICS = Path("/sys/class/infiniband")
_FEWEST_FOR_P99 = 100
_FEWEST_FOR_P999 = 1000


@dataclass(frozen=True, kw_only=True)
class Perftest(ToolBenchmark):
    """How fast one NIC reaches another, below every library, by ``ib_write_bw`` and its kin.

    ``device: [mlx5_0, mlx5_1]`` measures NIC by NIC; both hosts use the one of that name. One process a size, because
    perftest's own sweep keeps no unit and stops at the first error. The unit is read from the table.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind(
            "bandwidth", "B/s", "higher", "bytes per second, mean of one run; both directions where bidirectional"
        ),
        MetricKind("peak_bandwidth", "B/s", "higher", "highest bytes per second that perftest saw within one run"),
        MetricKind("message_rate", "1/s", "higher", "messages per second of one run"),
        MetricKind(
            "latency",
            "s",
            "lower",
            "median of one run: half a round trip of writes and sends, a whole one of reads",
        ),
        MetricKind("latency_min", "s", "lower", "fastest message of one run"),
        MetricKind("latency_p99", "s", "lower", "99th percentile of one run, of 100 messages and more"),
        MetricKind("latency_p999", "s", "lower", "99.9th percentile of one run, of 1000 messages and more"),
        MetricKind("latency_max", "s", "lower", "slowest message that perftest kept: it drops the two slowest"),
    )
    install: ClassVar[str] = "Debian: apt install perftest; for GPU memory see docs/rdma.md"
    absent: ClassVar[Mapping[str, str]] = {
        r"Unable to find the Infiniband/RoCE device|No IB devices? found|Failed to get IB devices list"
        r"|Did not detect devices|IB device \S* ?not found": "no such RDMA device",
        r"unrecognized option '--use_cuda": "perftest was built without CUDA, see docs/rdma.md,",
    }

    test: str = option(
        "ib_write_bw",
        "operation, and what is measured of it",
        choices=("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat"),
    )
    pairs: str = option("neighbours", WHICH_NODES, choices=PAIRS)
    device: str = option("", "RDMA device on both hosts, as in ibv_devices; perftest takes its first where empty")
    gid_index: int | None = option(None, "entry of the GID table, which RoCE needs", minimum=0, maximum=255)
    qps: int = option(1, "queue pairs of a bandwidth test", minimum=1, maximum=16_384)
    bidirectional: bool = option(False, "both directions at once, their bandwidths summed")
    memory: str = option("host", "where the buffers are", choices=("host", "cuda", "cuda_dmabuf"))
    gpu_index: int = option(0, "GPU of the buffers on both hosts, by CUDA's index", minimum=0, maximum=255)
    min_size: int = option(8, "smallest message", unit="B", minimum=1, maximum=2**31)
    max_size: int = option(2**23, "largest message", unit="B", minimum=1, maximum=2**31)
    factor: int = option(8, "each size is so many times the one before", minimum=2, maximum=1024)
    messages: int = option(1000, "messages of each run", minimum=5, maximum=100_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_sizes(self.min_size, self.max_size)

    def points(self, place: Place) -> Iterable[Point]:
        for server, client in pairs_of(place, self.pairs):
            for size_bytes in sizes_between(self.min_size, self.max_size, self.factor):
                point = {
                    "size_bytes": size_bytes,
                    "test": self.test,
                    "device": self.device,
                    "gid_index": self.gid_index,
                    "qps": self.qps,
                    "bidirectional": self.bidirectional,
                    "memory": self.memory,
                    "gpu_index": self.gpu_index if self.memory != "host" else None,
                    "messages": self.messages,
                    "server": server,
                    "client": client,
                }
                yield with_limit(self, point)

    def label(self, point: Point) -> str:
        parts = [str(point["test"]), format_bytes(point["size_bytes"]), f"{point['server']}to{point['client']}"]
        parts += [point["device"]] if point["device"] else []
        parts += [f"gid{point['gid_index']}"] if point["gid_index"] is not None else []
        parts += [f"{point['qps']}qps"] if point["qps"] > 1 else []
        parts += ["bidirectional"] if point["bidirectional"] else []
        parts += [f"{point['memory']}{point['gpu_index']}"] if point["memory"] != "host" else []
        return "-".join(parts)

    def objection(self, point: Point, place: Place) -> str | None:
        if str(point["test"]).endswith("_lat") and (point["qps"] > 1 or point["bidirectional"]):
            return f"{point['test']} measures one message at a time: it has one queue pair and one direction"
        if point["memory"] != "host" and place.device != "cuda":
            return f"memory {point['memory']} is a GPU's, and there are none here"
        return None

    @classmethod
    def program_of(cls, point: Point) -> str:
        return str(point["test"])

    @classmethod
    def program_words(cls, point: Point) -> list[str]:
        """On CPUs of the NUMA node of the NIC, where it is named: from another, messages pass the link of sockets.

        Source: Mellanox community, DOC-2491, "Understanding NUMA Node for Performance Benchmarks".
        """
        return [*_beside(str(point["device"])), *super().program_words(point)]

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        # -F: a CPU whose clock varies is no reason to refuse. Both sides need the same words.
        words = ["-F", "-p", "{port}", "-s", str(point["size_bytes"]), "-n", str(point["messages"])]
        words += ["-d", str(point["device"])] if point["device"] else []
        words += ["-x", str(point["gid_index"])] if point["gid_index"] is not None else []
        words += ["-q", str(point["qps"])] if point["qps"] > 1 else []
        words += ["-b"] if point["bidirectional"] else []
        words += [f"--use_cuda={point['gpu_index']}"] if point["memory"] != "host" else []
        words += ["--use_cuda_dmabuf"] if point["memory"] == "cuda_dmabuf" else []
        return cls.between(rig, point, words, [*words, "{host}"])

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        rows = perftest.parse(text)
        row = rows[0]
        if isinstance(row, perftest.MeanLatency):
            raise ToolError(f"{point['test']} was asked for {point['messages']} messages and ran for a time instead")
        if isinstance(row, perftest.Latency) != str(point["test"]).endswith("_lat"):
            kind = "latency" if isinstance(row, perftest.Latency) else "bandwidth"
            raise ToolError(f"{point['test']} printed the table of a test of {kind}")
        if len(rows) != 1 or row.size_bytes != point["size_bytes"]:
            sizes = ", ".join(str(row.size_bytes) for row in rows)
            raise ToolError(f"{point['test']} was asked for {point['size_bytes']} bytes and printed rows of {sizes}")
        if isinstance(row, perftest.Bandwidth):
            peak = {} if row.peak_bytes_per_s is None else {"peak_bandwidth": row.peak_bytes_per_s}
            return {"bandwidth": row.bytes_per_s, "message_rate": row.messages_per_s, **peak}
        figures = {"latency": row.typical_s, "latency_min": row.min_s, "latency_max": row.max_s}
        figures |= {"latency_p99": row.p99_s} if row.iterations >= _FEWEST_FOR_P99 else {}
        figures |= {"latency_p999": row.p999_s} if row.iterations >= _FEWEST_FOR_P999 else {}
        return figures


def _beside(device: str) -> list[str]:
    """What keeps a program beside a NIC; nothing where it is beside all CPUs, or no device is named."""
    from clusterbench.engine.near_cpus import near_cpus

    usable = os.sched_getaffinity(0)
    near = near_cpus(NICS / device / "device", usable) if device else usable
    taskset = shutil.which("taskset")
    return [taskset, "-c", ",".join(map(str, sorted(near)))] if taskset and near < usable else []
