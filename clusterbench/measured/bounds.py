"""Figures that no device can reach: void, whatever was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clusterbench.cluster import Accelerator, Cluster
from clusterbench.types import DRY_RUN, VOID, Case, Metric
from clusterbench.units import format_value

BEYOND = f"{VOID}beyond a physical bound"
"""Begins the basis of such a figure."""

MARGIN = 0.10
"""Data sheets give rates at one clock, and a GPU may run at a higher one: that of an H100 by 8 %."""

_OF_TIME = (
    *("tokens_per_s", "tokens_per_s_per_rank", "model_flops_per_s_per_rank", "mfu", "hfu"),
    *("executed_flops_per_s_per_rank", "energy_per_token"),
)
"""Figures of a training step that are void together: all are the same time."""


_BUS_BY_LINK = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives of which each GPU receives what their bus bandwidth says."""

_UTILIZATION = ("mfu", "hfu")
"""Figures that are bounded whatever was planned, beside bus bandwidth inside a host."""


def without_impossible(case: Case, metrics: Sequence[Metric], cluster: Cluster) -> list[Metric]:
    """The figures of a case, those above the bound of a data sheet without their value; low and high stay.

    A time is kept. FLOPs are held against a bound as attention needs them under its causal mask, the fewest of all
    conventions; on a CPU no bound is known.
    """
    card = cluster.accelerator
    planned = {key for key, what in case.expected.items() if what.is_upper_bound}
    by_device: tuple[str, ...] = (*_UTILIZATION, "busbw")
    if card is not None and card.memory_bytes:
        by_device = (*by_device, "peak_memory")
    bound = [
        metric
        for metric in metrics
        if metric.value is not None and (metric.name in by_device or (planned and metric.key in planned))
    ]
    beyond = {metric.key: why for metric in bound for why in _why(case, metric, card)}
    if not beyond:
        return list(metrics)
    of_time = next((why for key, why in beyond.items() if key.partition("[")[0] in _OF_TIME), "")
    if of_time:
        beyond |= {metric.key: of_time for metric in metrics if metric.name in _OF_TIME}
    return [_void(metric, beyond[metric.key]) if metric.key in beyond else metric for metric in metrics]


def _void(metric: Metric, why: str) -> Metric:
    return metric if metric.value is None else metric._replace(value=None, basis=f"{BEYOND}: {why}")


def _why(case: Case, metric: Metric, card: Accelerator | None) -> Iterator[str]:
    for bound, what in _bounds(case, metric, card):
        if metric.value is not None and metric.value > bound * (1 + MARGIN):
            name, unit = metric.name.replace("_", " "), metric.unit
            yield f"{name} {_text(metric.value, unit)} is above {_text(bound, unit)}, {what}"


def _bounds(case: Case, metric: Metric, card: Accelerator | None) -> Iterable[tuple[float, str]]:
    planned = case.expected.get(metric.key)
    is_of_peak = metric.detail.get("peak") == "datasheet" or metric.name == "model_flops_per_s_per_rank"
    if is_of_peak and metric.detail.get("flops_convention") != "causal":
        return  # other conventions count what a causal mask leaves out
    if metric.name in _UTILIZATION and is_of_peak:
        yield 1.0, metric.basis
    is_dry = metric.detail.get("source") == DRY_RUN  # no device had to hold it
    if metric.name == "peak_memory" and card is not None and card.memory_bytes and not is_dry:
        yield card.memory_bytes, f"memory as sold: {card.source}"
    if planned is not None and planned.is_upper_bound:
        yield planned.value, planned.basis.removeprefix("at most; ")  # as 'is above' says
    if metric.name == "busbw" and card is not None and (link := card.link_bytes_per_s) and _is_within_a_host(case):
        yield from _of_a_bus(case, link, card.source)


def _is_within_a_host(case: Case) -> bool:
    return case.device == "cuda" and case.num_nodes == 1 and case.benchmark in _BUS_BY_LINK


def _of_a_bus(case: Case, link_bytes_per_s: float, source: str) -> Iterator[tuple[float, str]]:
    """What each GPU has to receive over its link, in bus bandwidth; nothing beyond that host.

    Switches that reduce (NVLink SHARP) spare an all-reduce half of its bytes: each GPU sends and receives the array
    once, so that algbw may reach the link, and busbw 2 (n-1)/n of it. Of no other collective they spare what a GPU
    receives. Source: nccl-tests, doc/PERFORMANCE.md, and issue 366.
    """
    num_ranks = int(case.point.get("group_size", case.world_size))
    if num_ranks > 1:
        spared = 2 * (num_ranks - 1) / num_ranks if case.benchmark == "all_reduce" else 1.0
        yield spared * link_bytes_per_s, f"the link of one GPU, one direction: {source}"


def _text(value: float, unit: str) -> str:
    return f"{value:.3g}" if unit == "fraction" else format_value(value, unit)
