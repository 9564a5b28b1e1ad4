"""Training steps that were invented: what their plan expects, and the metrics of what their ranks are said to see."""

from __future__ import annotations

from typing import Any

from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cluster import Cluster
from clusterbench.types import Case, Metric, Observation, Place


def _place(device: str) -> Place:
    return Place(Cluster(1, 8, device, "NVIDIA H100 80GB HBM3" if device == "cuda" else ""), 1)


def case_of(layout: str, device: str = "cpu", **options: Any) -> Case:
    sizes = {"seq_len": 32, "global_batch_size": 16, "micro_batch_size": 2}
    benchmark, place = TrainStep.from_options({"layouts": (layout,), **sizes, **options}), _place(device)
    (point,) = benchmark.points(place)
    expected = benchmark.predict(point, place)
    size = benchmark.world_size(point, place)
    return Case("c", "train_step", 1, point, device, 1, size, 1, 1, 60.0, "suite", expected=expected)


def observed(case: Case, **passes: Any) -> Observation:
    """Each pass as its ranks recorded it, in rank order."""
    return Observation("c", case.hash, 1, 1, ("a",), [[1.0]] * case.world_size, passes=passes)


def derived(case: Case, **passes: Any) -> dict[str, Metric]:
    return {metric.key: metric for metric in TrainStep.derive(case, observed(case, **passes), _place(case.device))}
