"""Copies between host and GPUs and between GPUs of each node, by nvbandwidth."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import NODES, Figures, ToolBenchmark, first_ranks, with_limit
from clusterbench.errors import NotHere, ToolError
from clusterbench.options import option
from clusterbench.tools import nvbandwidth
from clusterbench.types import Expected, MetricKind, Place, Point, Step, metric_key
from clusterbench.units import format_bytes

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_TESTS = (
    "host_to_device_memcpy_ce",
    "device_to_host_memcpy_ce",
    "host_to_device_bidirectional_memcpy_ce",
    "device_to_host_bidirectional_memcpy_ce",
    "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_write_ce",
    "device_to_device_bidirectional_memcpy_read_ce",
    "device_to_device_bidirectional_memcpy_write_ce",
    "host_to_device_memcpy_sm",
    "device_to_host_memcpy_sm",
    "device_to_device_memcpy_read_sm",
    "device_to_device_memcpy_write_sm",
    "all_to_one_write_ce",
    "all_to_one_read_ce",
    "one_to_all_write_ce",
    "one_to_all_read_ce",
    "host_device_latency_sm",
    "device_to_device_latency_sm",
    "device_local_copy",
    "multinode_device_to_device_memcpy_read_ce",
    "multinode_device_to_device_memcpy_write_ce",
    "multinode_device_to_device_bidirectional_memcpy_read_ce",
    "multinode_device_to_device_bidirectional_memcpy_write_ce",
    "multinode_device_to_device_memcpy_read_sm",
    "multinode_device_to_device_memcpy_write_sm",
    "multinode_device_to_device_bidirectional_memcpy_read_sm",
    "multinode_device_to_device_bidirectional_memcpy_write_sm",
    "multinode_device_to_device_all_to_one_write_sm",
    "multinode_device_to_device_all_from_one_read_sm",
    "multinode_device_to_device_broadcast_one_to_all_sm",
    "multinode_device_to_device_broadcast_all_to_all_sm",
    "multinode_bisect_write_ce",
)
_ONE_WAY = {
    "host_to_device_memcpy_ce": "host",
    "device_to_host_memcpy_ce": "host",
    "host_to_device_memcpy_sm": "host",
    "device_to_host_memcpy_sm": "host",
    "device_to_device_memcpy_read_ce": "device",
    "device_to_device_memcpy_write_ce": "device",
    "device_to_device_memcpy_read_sm": "device",
    "device_to_device_memcpy_write_sm": "device",
    "multinode_device_to_device_memcpy_read_ce": "device",
    "multinode_device_to_device_memcpy_write_ce": "device",
    "multinode_device_to_device_memcpy_read_sm": "device",
    "multinode_device_to_device_memcpy_write_sm": "device",
    "multinode_bisect_write_ce": "device",
}
"""Tests in which a GPU has one copy at a time in one direction, or one in each, and the link that it crosses."""

_BOTH_WAYS = {
    "device_to_device_bidirectional_memcpy_read_ce": ("read1", "read2", "total"),
    "device_to_device_bidirectional_memcpy_write_ce": ("write1", "write2", "total"),
    "multinode_device_to_device_bidirectional_memcpy_read_ce": ("read1", "read2", "total"),
    "multinode_device_to_device_bidirectional_memcpy_write_ce": ("write1", "write2", "total"),
    "multinode_device_to_device_bidirectional_memcpy_read_sm": ("read1", "read2", "total"),
    "multinode_device_to_device_bidirectional_memcpy_write_sm": ("write1", "write2", "total"),
}
"""Tests that print each direction and the total, from nvbandwidth 0.6 on; before that the first direction alone."""

_ROUNDED_BYTES_PER_S = 0.02e9


@dataclass(frozen=True, kw_only=True)
class Nvbandwidth(ToolBenchmark):
    """How fast each GPU of a node copies from and to the host and each other GPU, node by node.

    Tests of ``ce`` use a copy engine, those of ``sm`` a kernel, whose packets are smaller and whose figures are lower.
    ``part`` is row to column of nvbandwidth's matrix. Of both directions at once ``bandwidth`` is that of one of them;
    between GPUs nvbandwidth 0.6 and newer print the sum as well.

    Tests of ``multinode`` are of all GPUs of an NVLink domain, such as an NVL72 rack: copies go to memory of other
    hosts. They take a program that was built for it, the IMEX service, and a ``launcher`` that starts a process for
    each GPU, ``mpirun -n 8 -host a:4,b:4``; rows and columns are numbered as these processes are.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("bandwidth", "B/s", "higher", "median over the cells of the matrix"),
        MetricKind("lowest_bandwidth", "B/s", "higher", "slowest cell of the matrix"),
        MetricKind("pair_bandwidth", "B/s", "higher", "one cell: bytes per second between row and column (part)"),
        MetricKind("bandwidth_both", "B/s", "higher", "both directions at once, summed: median over the cells"),
        MetricKind("pair_bandwidth_both", "B/s", "higher", "one cell of the same: between row and column (part)"),
        MetricKind("latency", "s", "lower", "median over the cells of the matrix: one dependent access"),
        MetricKind("highest_latency", "s", "lower", "slowest cell of the matrix"),
        MetricKind("pair_latency", "s", "lower", "one cell: one dependent access between row and column (part)"),
    )
    predicts: ClassVar[tuple[str, ...]] = ("bandwidth", "lowest_bandwidth")
    program: ClassVar[str] = "nvbandwidth"
    install: ClassVar[str] = "build it from github.com/NVIDIA/nvbandwidth: docs/rdma.md"
    absent: ClassVar[Mapping[str, str]] = {
        r"CUDA_ERROR_NO_DEVICE|no CUDA-capable device|libcuda\.so|libnvidia-ml\.so": "there is no GPU",
    }

    test: str = option("device_to_device_memcpy_write_ce", "one of nvbandwidth's tests", choices=_TESTS)
    launcher: str = option("", "words before the program that start one process a GPU, for tests of several nodes")
    nodes: str = option("each", "which nodes are measured, one by one; the first alone with a launcher", choices=NODES)
    buffer_size: int = option(2**29, "bytes of one copy, whole MiB", unit="B", minimum=2**20, maximum=2**40)
    samples: int = option(3, "copies of which nvbandwidth takes the median", minimum=1, maximum=1000)

    def points(self, place: Place) -> Iterable[Point]:
        for runner in first_ranks(place, "first" if self.launcher else self.nodes):
            point = {"test": self.test, "buffer_bytes": self.buffer_size, "samples": self.samples, "runner": runner}
            yield with_limit(self, point | ({"launcher": self.launcher} if self.launcher else {}))

    def label(self, point: Point) -> str:
        how = "launched" if "launcher" in point else f"on{point['runner']}"
        return f"{point['test']}-{format_bytes(point['buffer_bytes'])}-{how}"

    def objection(self, point: Point, place: Place) -> str | None:
        is_of_several, test = str(point["test"]).startswith(nvbandwidth.MULTINODE), point["test"]
        if is_of_several and "launcher" not in point:
            return (
                f"{test} takes a process for each GPU: 'launcher' says what starts them, as mpirun -n 8 -host a:4,b:4"
            )
        if "launcher" in point and not is_of_several:
            return (
                f"of several processes the first alone would say what {test} is: without 'launcher' it is of one node"
            )
        if point["buffer_bytes"] % 2**20:
            return f"nvbandwidth takes whole MiB, and {point['buffer_bytes']} B are none"
        return None

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        card = place.cluster.accelerator
        if card is None or point["test"] not in _ONE_WAY:
            return {}
        link, rate = {
            "host": ("one direction of the link to the host", card.pcie_bytes_per_s),
            "device": ("one direction of all links between GPUs", card.link_bytes_per_s),
        }[_ONE_WAY[str(point["test"])]]
        if rate is None:
            return {}
        basis = f"{link} by the data sheet, an upper bound: {card.source}"
        expected = Expected(rate, "B/s", basis, is_upper_bound=True)
        return {"bandwidth": expected, "lowest_bandwidth": expected}

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        mebibytes = int(point["buffer_bytes"]) // 2**20
        words = ["-t", str(point["test"]), "-b", str(mebibytes), "-i", str(point["samples"])]
        return cls.alone(rig, point, words)

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        if any(line.strip().lower().startswith("waived") for line in text.splitlines()):
            raise NotHere(f"nvbandwidth waived {point['test']}: this node has not the GPUs or the links for it")
        matrices = nvbandwidth.parse(text)
        test = str(point["test"])
        if [*matrices] == [f"{test}_{word}" for word in _BOTH_WAYS.get(test, ())]:
            return _both_ways(test, [*matrices.values()])
        if [*matrices] != [test]:
            raise ToolError(f"nvbandwidth was asked for {test} and printed {', '.join(matrices)}")
        matrix = matrices[test]
        cells = _cells(test, matrix)
        if matrix.unit == "B/s":
            name, extreme, worst = "bandwidth", "lowest_bandwidth", min(cells.values())
        else:
            name, extreme, worst = "latency", "highest_latency", max(cells.values())
        figures = {name: statistics.median(cells.values()), extreme: worst}
        return figures | (_pairs(f"pair_{name}", cells) if len(cells) > 1 else {})


def _both_ways(test: str, matrices: Sequence[nvbandwidth.Matrix]) -> Figures:
    """Of each direction while the other is under way, and of their sum. Cells are those of the first direction."""
    first, second, both = (_cells(test, matrix) for matrix in matrices)
    for pair, rate in both.items():
        if abs(first.get(pair, 0.0) + second.get(pair, 0.0) - rate) > _ROUNDED_BYTES_PER_S:
            raise ToolError(f"nvbandwidth printed a total of {test} that is not that of its directions: {pair}")
    rates = [*first.values(), *second.values()]
    return {
        "bandwidth": statistics.median(rates),
        "lowest_bandwidth": min(rates),
        "bandwidth_both": statistics.median(both.values()),
        **_pairs("pair_bandwidth", first),
        **_pairs("pair_bandwidth_both", both),
    }


def _cells(test: str, matrix: nvbandwidth.Matrix) -> Mapping[tuple[int, int], float]:
    if not matrix.cells:
        raise NotHere(f"nvbandwidth has no pair to measure for {test}: one GPU has no peer")
    return matrix.cells


def _pairs(name: str, cells: Mapping[tuple[int, int], float]) -> dict[str, float]:
    return {metric_key(name, part=f"{row}to{column}"): rate for (row, column), rate in cells.items()}
