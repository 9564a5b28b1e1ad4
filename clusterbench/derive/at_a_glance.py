"""What a case showed, in a few words, as soon as it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterbench.cluster import Cluster
from clusterbench.derive.figures import repeat_metrics
from clusterbench.run_folder.attempts import History
from clusterbench.types import SAMPLES, Case, Metric, Observation
from clusterbench.units import UNITS, format_value

_RATES = ("busbw", "tokens_per_s", "flops_per_s_per_rank", "bandwidth_per_rank", "bandwidth")
"""The first of these that a case has; of a case with none, its first figure of bytes or calls per second."""


def at_a_glance(case: Case, observation: Observation, cluster: Cluster) -> str:
    """``226.9 ms, 9,027 tokens/s``: its time and its rate; empty where its benchmark derives neither.

    Where all figures are of one kind that is said behind them: ``42.6 ms, 187.9 MB/s per rank (cold)``.

    What passes counted on every rank is left out: on thousands of ranks it takes longer than a person should wait.
    """
    timed = replace(observation, passes={name: of for name, of in observation.passes.items() if name == SAMPLES})
    (metrics,) = repeat_metrics(History(case, (), (timed,)), cluster)
    known = [metric for metric in metrics if metric.unit in UNITS]
    whole = [metric for metric in known if not metric.detail]
    kinds = {metric.detail.get("category") for metric in known}
    (kind,) = kinds if not whole and len(kinds) == 1 else (None,)
    picked = _picked(whole if kind is None else known)
    said = ", ".join(_said(metric.name, metric.value, metric.unit) for metric in picked if metric.value)
    return f"{said} ({kind})" if said and kind is not None else said


def _said(name: str, value: float, unit: str) -> str:
    what = " per rank" if name.endswith("_per_rank") else " busbw" if name == "busbw" else ""
    return f"{format_value(value, unit)}{what}"


def _picked(metrics: Sequence[Metric]) -> Iterator[Metric]:
    yield from [metric for metric in metrics if metric.unit == "s"][:1]
    named = {metric.name: metric for metric in reversed(metrics)}
    known = [named[name] for name in _RATES if name in named]
    yield from (known or [metric for metric in metrics if metric.unit in ("B/s", "1/s")])[:1]
