"""One rank by itself: a rig without a process group, figures from planted seconds, and times by plain events."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from clusterbench.benchmarks import benchmarks
from clusterbench.cluster import Cluster
from clusterbench.engine.clock import clock_for
from clusterbench.engine.loop import measure, warm_up
from clusterbench.engine.rig import Rig
from clusterbench.types import Case, Metric, Observation, Place

CPU = Place(Cluster(1, 4, "cpu"), 1)
H100 = Place(Cluster(1, 8, "cuda", gpu_name="NVIDIA H100 80GB HBM3"), 1)


def rig(device: str = "cpu", rank: int = 0) -> Rig:
    return Rig(rank=rank, world_size=rank + 1, local_rank=0, host="here", device=torch.device(device))


def derived(
    benchmark: str,
    point: Mapping[str, Any],
    seconds: Sequence[Sequence[float]],
    evidence: Sequence[Mapping[str, float]] = (),
    passes: Mapping[str, Any] | None = None,
) -> dict[str, Metric]:
    """The metrics of a case whose ranks took so long."""
    kind = benchmarks()[benchmark]
    case = Case("x", benchmark, kind.version, point, "cpu", 1, len(seconds), 1, 0, 60.0)
    observation = Observation("x", "", 0, 1, ("a",), seconds, evidence=evidence, passes=passes or {})
    return {metric.name: metric for metric in kind.derive(case, observation, CPU)}


def median_s(run: Callable[[], object], iterations: int = 20) -> float:
    """Seconds of a call on the GPU, by the project's own loop."""
    clock = clock_for(torch.device("cuda"))
    warm_up(run, clock, 3, lambda _: None)
    return statistics.median(measure(run, clock, iterations, lambda _: None))


def median_by_events_s(run: Callable[[], object], iterations: int = 20) -> float:
    """The same with a pair of events around each call, and a wait for it: nothing of this project."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times_s = []
    for _ in range(iterations):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times_s.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times_s)
