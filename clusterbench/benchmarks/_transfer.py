"""What benchmarks have in common that move a known number of bytes: a pattern, and the time and the rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from clusterbench.formulas.statistics import summarise
from clusterbench.types import Case, Metric, MetricKind, Observation

if TYPE_CHECKING:
    import torch

WORD_BYTES = 8
_ODD = -7046029254386353131  # 2^64 over the golden ratio, as a signed number: neighbours differ in every byte


def transfer_metrics(what: str) -> tuple[MetricKind, ...]:
    """The three metrics of :func:`transferred`; ``what`` is moved once an iteration."""
    return (
        MetricKind("transfer_time", "s", "lower", f"time of {what}, from the slowest rank"),
        MetricKind("bandwidth_per_rank", "B/s", "higher", "bytes that one rank moves, over the time of the slowest"),
        MetricKind("bandwidth", "B/s", "higher", "bytes that all ranks move, over the time of the slowest"),
    )


def transferred(
    case: Case, observation: Observation, size_bytes: int, detail: Mapping[str, str] | None = None, basis: str = ""
) -> Iterator[Metric]:
    """Time and rates of a case of which every rank moves ``size_bytes`` an iteration."""
    time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
    detail = detail or {}
    yield Metric("transfer_time", "s", time.value, time.low, time.high, time.n, detail, basis=basis)
    for name, moved in (("bandwidth_per_rank", size_bytes), ("bandwidth", size_bytes * case.world_size)):
        # The slow end of the time is the low end of the rate.
        value, low, high = (moved / time_s for time_s in (time.value, time.high, time.low))
        yield Metric(name, "B/s", value, low, high, time.n, detail, basis=basis)


def pattern(numel: int, start: int, device: torch.device | str) -> torch.Tensor:
    """``numel`` words of 64 bits, none zero and all different, each a function of its index and ``start``.

    A word that is lost, doubled or in another's place shows; so does one of another rank's where ranks start apart.
    """
    import torch

    return torch.arange(start + 1, start + 1 + numel, dtype=torch.int64, device=device).mul_(_ODD)
