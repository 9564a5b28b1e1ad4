"""What is left of a case whose ranks share GPUs: proofs, bytes and counts, and nothing that rests on a clock."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbench.cluster import Cluster
from clusterbench.types import PROOF_TIME, Metric

TIMED_UNITS = frozenset({"s", "tokens/s", "B/s", "FLOP/s", "1/s", "fraction", "J", "W", "Hz"})
"""Of figures that rest on a clock; every fraction is one of time or of a rate."""

TIMED = frozenset({"attention_imbalance"})
"""Figures without such a unit that do."""


def without_shared_time(metrics: Sequence[Metric], cluster: Cluster) -> list[Metric]:
    """The figures of a case; where ranks share GPUs those that rest on a clock without a value.

    >>> shared = Cluster(1, 2, "cuda", ranks_per_gpu=2)
    >>> [time, size] = without_shared_time([Metric("step_time", "s", 1.0), Metric("peak_memory", "B", 8.0)], shared)
    >>> time.value, time.basis, size.value
    (None, 'void: 2 ranks share each GPU', 8.0)
    """
    if cluster.ranks_per_gpu == 1:
        return list(metrics)
    why = f"void: {cluster.ranks_per_gpu} ranks share each GPU"
    return [
        metric._replace(value=None, low=None, high=None, basis=why) if _is_timed(metric) else metric
        for metric in metrics
    ]


def _is_timed(metric: Metric) -> bool:
    return metric.name != PROOF_TIME and (metric.unit in TIMED_UNITS or metric.name in TIMED)
