"""Dispatch and combine of a mixture of experts by DeepEP's own tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._tool import Figures, ToolBenchmark, first_ranks, with_limit
from clusterbench.errors import NotHere, ToolError
from clusterbench.options import option
from clusterbench.tools import deepep
from clusterbench.types import MetricKind, Place, Point, Step, metric_key

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_FOLDERS = ("tests", "tests/legacy")
_VARIABLE = "DEEPEP_HOME"
_PROCESSES_BETWEEN_NODES = 8


@dataclass(frozen=True, kw_only=True)
class Deepep(ToolBenchmark):
    """How fast tokens reach their experts and come back by DeepEP's kernels.

    Its tests check every result before they time it. ``intranode`` runs on one node after the other; ``internode`` and
    ``low_latency`` on all nodes at once, one program a node with its processes. Bandwidths are DeepEP's and logical:
    they count tokens that stay on their rank, so they cannot be held against the rate of a link.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("time", "s", "lower", "best transfer of the tuning, or a rank's mean of low-latency calls (part)"),
        MetricKind("fastest_time", "s", "lower", "fastest low-latency dispatch and combine; far from the mean: stalls"),
        MetricKind("slowest_time", "s", "lower", "slowest low-latency dispatch and combine"),
        MetricKind("rdma_bandwidth", "B/s", "higher", "logical bytes over RDMA per second, local ones included (part)"),
        MetricKind(
            "nvl_bandwidth", "B/s", "higher", "logical bytes over NVLink per second, local ones included (part)"
        ),
        MetricKind("bandwidth", "B/s", "higher", "logical bytes of low-latency calls per second, local ones included"),
    )
    install: ClassVar[str] = f"option 'path', or {_VARIABLE}, names a checkout of DeepEP; how to build it: docs/rdma.md"
    absent: ClassVar[Mapping[str, str]] = {
        r"No module named '?deep_ep": "the Python module deep_ep is not installed, see docs/rdma.md,",
        r"No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA": "there is no GPU",
    }

    test: str = option("intranode", "which of DeepEP's tests", choices=("intranode", "internode", "low_latency"))
    path: str = option("", f"DeepEP's checkout; where empty, the variable {_VARIABLE} says")
    num_processes: int = option(8, "processes, and GPUs, of each node", minimum=1, maximum=64)
    num_tokens: int = option(4096, "tokens of each rank; low_latency is made for 128", minimum=1, maximum=2**20)
    hidden: int = option(7168, "elements of a token", minimum=128, maximum=2**20)
    num_topk: int = option(8, "experts of each token", minimum=1, maximum=1024)
    num_experts: int = option(256, "experts on all ranks", minimum=1, maximum=2**20)
    tool_time_limit_s: float = option(
        900.0, "seconds after which one run of it is ended; it tries hundreds of settings", minimum=1, maximum=86_400
    )

    def points(self, place: Place) -> Iterable[Point]:
        firsts = first_ranks(place)
        groups = [[first] for first in firsts] if self.test == "intranode" else [[*firsts]]
        for runners in groups:
            point = {
                "test": self.test,
                "path": self.path,
                "num_processes": self.num_processes,
                "num_tokens": self.num_tokens,
                "hidden": self.hidden,
                "num_topk": self.num_topk,
                "num_experts": self.num_experts,
                "runners": " ".join(map(str, runners)),
            }
            yield with_limit(self, point)

    def label(self, point: Point) -> str:
        runners = str(point["runners"]).split()
        where = f"on{runners[0]}" if len(runners) == 1 else f"{len(runners)}nodes"
        batch = f"{point['num_tokens']}tokens-{point['hidden']}hidden"
        experts = f"top{point['num_topk']}of{point['num_experts']}"
        return f"{point['test']}-{batch}-{experts}-{point['num_processes']}each-{where}"

    def objection(self, point: Point, place: Place) -> str | None:
        if point["test"] == "internode" and place.num_nodes == 1:
            return "internode needs two nodes or more, and there is one; within a node there is 'intranode'"
        if point["test"] == "internode" and point["num_processes"] != _PROCESSES_BETWEEN_NODES:
            return f"internode needs {_PROCESSES_BETWEEN_NODES} processes a node, not {point['num_processes']}"
        if place.device == "cuda" and point["num_processes"] > place.cluster.ranks_per_node:
            return (
                f"{point['num_processes']} processes need as many GPUs, and a node has {place.cluster.ranks_per_node}"
            )
        return None

    @classmethod
    def program_of(cls, point: Point) -> str:
        return sys.executable

    @classmethod
    def program_words(cls, point: Point) -> list[str]:
        folder_path = str(point["path"]) or os.environ.get(_VARIABLE, "")
        if not folder_path:
            raise NotHere(f"the folder of DeepEP is not given.\nhint: {cls.install}")
        files = [Path(folder_path) / folder / f"test_{point['test']}.py" for folder in _FOLDERS]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise NotHere(f"there is no {' or '.join(map(str, files))}.\nhint: {cls.install}")
        return [*super().program_words(point), str(file)]

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        runners = [int(rank) for rank in str(point["runners"]).split()]
        names = ("num_processes", "num_tokens", "hidden", "num_topk", "num_experts")
        words = [word for name in names for word in (f"--{name.replace('_', '-')}", str(point[name]))]

        def environment(host: str, port: str) -> Mapping[str, str]:
            # In DeepEP's tests these two count nodes.
            node = {"WORLD_SIZE": str(len(runners)), "RANK": str(runners.index(rig.rank))}
            return {"MASTER_ADDR": host, "MASTER_PORT": port, **node}

        return cls.on_nodes(rig, point, runners, words, environment)

    @classmethod
    def parse(cls, text: str, point: Point) -> Figures:
        return _low_latency(text, point) if point["test"] == "low_latency" else _tuned(text, point)


def _tuned(text: str, point: Point) -> Figures:
    figures: dict[str, float] = {}
    for best in deepep.parse_best(text):
        if (best.rdma_bytes_per_s is None) != (point["test"] == "intranode"):
            raise ToolError(f"DeepEP's test_{point['test']}.py printed the figures of another test")
        values = {"time": best.time_s, "rdma_bandwidth": best.rdma_bytes_per_s, "nvl_bandwidth": best.nvl_bytes_per_s}
        figures |= {metric_key(name, part=best.part): value for name, value in values.items() if value is not None}
    return figures


def _low_latency(text: str, point: Point) -> Figures:
    """Those of the slowest rank of the node, as everywhere the time is that of the slowest."""
    ranks = deepep.parse_low_latency(text)
    if len(ranks) != point["num_processes"]:
        raise ToolError(f"DeepEP's test of {point['num_processes']} processes printed figures of {len(ranks)} ranks")
    return {
        metric_key("time", part="dispatch_combine"): max(rank.whole_s for rank in ranks),
        metric_key("time", part="dispatch"): max(rank.dispatch_s for rank in ranks),
        metric_key("time", part="combine"): max(rank.combine_s for rank in ranks),
        "fastest_time": min(rank.whole_min_s for rank in ranks),
        "slowest_time": max(rank.whole_max_s for rank in ranks),
        metric_key("bandwidth", part="dispatch_combine"): min(rank.whole_bytes_per_s for rank in ranks),
        metric_key("bandwidth", part="dispatch"): min(rank.dispatch_bytes_per_s for rank in ranks),
        metric_key("bandwidth", part="combine"): min(rank.combine_bytes_per_s for rank in ranks),
    }
