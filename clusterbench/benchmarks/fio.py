"""Files on each node by fio: what a checkpoint or a data loader gets from a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import NODES, Figures, ToolBenchmark, first_ranks, with_limit
from clusterbench.errors import ToolError
from clusterbench.options import option
from clusterbench.tools import fio
from clusterbench.types import MetricKind, Place, Point, Step
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig


@dataclass(frozen=True, kw_only=True)
class Fio(ToolBenchmark):
    """How fast files in a folder are read and written, node by node.

    Without ``direct`` reads may come from memory. The files are laid out by fio itself and removed at the end of a run.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("bandwidth", "B/s", "higher", "bytes per second of one run, all jobs together"),
        MetricKind("request_rate", "1/s", "higher", "requests per second of one run"),
        MetricKind("latency", "s", "lower", "median time of a request, from its submission to its completion"),
        MetricKind("latency_p99", "s", "lower", "99th percentile of the same"),
        MetricKind("latency_mean", "s", "lower", "mean of the same"),
    )
    program: ClassVar[str] = "fio"
    install: ClassVar[str] = "Debian: apt install fio"

    test: str = option("read", "direction, and where in the file", choices=("read", "write", "randread", "randwrite"))
    directory: str = option("/tmp", "folder of the files; it must exist on every node that is measured")
    nodes: str = option("each", "which nodes are measured, one after the other", choices=NODES)
    block_size: int = option(2**20, "bytes of one request", unit="B", minimum=512, maximum=2**30)
    file_size: int = option(2**30, "bytes of each job's file", unit="B", minimum=4096, maximum=2**44)
    jobs: int = option(1, "threads, each with a file of its own", minimum=1, maximum=1024)
    depth: int = option(1, "requests under way at once in each job", minimum=1, maximum=65_536)
    engine: str = option("psync", "how fio asks the kernel", choices=("psync", "libaio", "io_uring"))
    direct: bool = option(False, "past the page cache; not every file system allows it")
    seconds: int = option(5, "how long it runs", minimum=1, maximum=3600)

    def points(self, place: Place) -> Iterable[Point]:
        for runner in first_ranks(place, self.nodes):
            point = {
                "test": self.test,
                "directory": self.directory,
                "block_bytes": self.block_size,
                "file_bytes": self.file_size,
                "jobs": self.jobs,
                "depth": self.depth,
                "engine": self.engine,
                "direct": self.direct,
                "seconds": self.seconds,
                "runner": runner,
            }
            yield with_limit(self, point)

    def label(self, point: Point) -> str:
        place = str(point["directory"]).strip("/").replace("/", "_").replace(" ", "_") or "root"
        parts = [point["test"], place, format_bytes(point["block_bytes"]), f"{point['jobs']}x{point['depth']}"]
        parts += ["direct"] if point["direct"] else []
        return "-".join([*parts, str(point["engine"]), f"on{point['runner']}"])

    def objection(self, point: Point, place: Place) -> str | None:
        if point["engine"] == "psync" and point["depth"] > 1:
            return "engine psync has one request under way in a job: write 'libaio' or 'io_uring', or more jobs"
        if point["block_bytes"] > point["file_bytes"]:
            sizes = format_bytes(point["block_bytes"]), format_bytes(point["file_bytes"])
            return f"a block of {sizes[0]} does not fit into a file of {sizes[1]}"
        if point["seconds"] >= point["tool_time_limit_s"]:
            return f"fio runs for {point['seconds']} s and would be ended after {point['tool_time_limit_s']:g} s"
        return None

    @classmethod
    def cost(cls, point: Point) -> float:
        return float(point["seconds"])

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        words = {
            "name": "clusterbench",
            "directory": point["directory"],
            "rw": point["test"],
            "bs": point["block_bytes"],
            "size": point["file_bytes"],
            "numjobs": point["jobs"],
            "iodepth": point["depth"],
            "ioengine": point["engine"],
            "direct": int(point["direct"]),
            "runtime": point["seconds"],
            "output-format": "json",
        }
        # Threads, so that ending fio ends its jobs. A write that is only in memory is none: it ends with fsync.
        flags = ["--thread", "--time_based", "--group_reporting", "--unlink=1", "--end_fsync=1"]
        return cls.alone(rig, point, [*(f"--{name}={value}" for name, value in words.items()), *flags])

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        direction = str(point["test"]).removeprefix("rand")
        result = fio.parse(text, direction)
        by_requests = result.requests_per_s * int(point["block_bytes"])
        if abs(by_requests - result.bytes_per_s) > 0.02 * result.bytes_per_s:
            raise ToolError(
                f"fio printed {result.bytes_per_s:.4g} B/s, but {result.requests_per_s:.4g} requests of "
                f"{point['block_bytes']} bytes a second are {by_requests:.4g} B/s"
            )
        return {
            "bandwidth": result.bytes_per_s,
            "request_rate": result.requests_per_s,
            "latency": result.latency_p50_s,
            "latency_p99": result.latency_p99_s,
            "latency_mean": result.latency_mean_s,
        }
