"""Which cases carry no speed, why, and what is left of them: proofs, bytes and counts."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbench.cluster import Cluster
from clusterbench.types import PROOF_TIME, VOID, Case, Metric

TIMED_UNITS = frozenset({"s", "tokens/s", "B/s", "FLOP/s", "1/s", "fraction", "J", "W", "Hz"})
"""Of figures that rest on a clock; every fraction is one of time or of a rate."""

TIMED = frozenset({"attention_imbalance"})
"""Figures without such a unit that do."""

LONE_RANK = "rank_step"
"""The benchmark whose cases are one rank of a layout, the others of which are not there."""

OF_A_LONE_RANK = frozenset({"rank_time", "compute_time"})
"""Its figures that rest on a clock: what the rank itself takes, which is no speed of the layout."""


def why_no_speed(case: Case, cluster: Cluster) -> str:
    """Why no time of a case is that of training on its layout; empty where it is.

    >>> case = Case("rank_step/1n1/tp8", LONE_RANK, 1, {}, "cpu", 1, 1, 1, 0, 60.0)
    >>> why_no_speed(case, Cluster(1, 1, "cpu"))
    'one rank computed alone, and nothing was sent'
    """
    if cluster.ranks_per_gpu > 1:
        return f"{cluster.ranks_per_gpu} ranks share each GPU"
    return "one rank computed alone, and nothing was sent" if case.benchmark == LONE_RANK else ""


def without_speed(metrics: Sequence[Metric], case: Case, cluster: Cluster) -> list[Metric]:
    """The figures of a case; where it carries no speed those that rest on a clock without a value.

    >>> case, shared = Case("", "train_step", 1, {}, "cuda", 1, 2, 1, 0, 60.0), Cluster(1, 2, "cuda", ranks_per_gpu=2)
    >>> [time, size] = without_speed([Metric("step_time", "s", 1.0), Metric("peak_memory", "B", 8.0)], case, shared)
    >>> time.value, time.basis, size.value
    (None, 'void: 2 ranks share each GPU', 8.0)
    """
    why = why_no_speed(case, cluster)
    if not why:
        return list(metrics)
    kept = {PROOF_TIME} if cluster.ranks_per_gpu > 1 else {PROOF_TIME, *OF_A_LONE_RANK}
    return [
        metric._replace(value=None, low=None, high=None, basis=f"{VOID}{why}")
        if is_timed(metric) and metric.name not in kept
        else metric
        for metric in metrics
    ]


def is_timed(metric: Metric) -> bool:
    """Whether a figure rests on a clock."""
    return metric.unit in TIMED_UNITS or metric.name in TIMED
