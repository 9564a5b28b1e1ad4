"""What benchmarks have in common whose iterations power and heat bound: on GPUs they are timed once clocks settled."""

from __future__ import annotations

from dataclasses import dataclass

from clusterbench.benchmarks import Benchmark
from clusterbench.formulas.statistics import Summary, summarise
from clusterbench.options import option
from clusterbench.types import Observation, Point


@dataclass(frozen=True, kw_only=True)
class SustainedBenchmark(Benchmark):
    """Arithmetic or memory bounds an iteration: see ``engine/settling.py``. What latency bounds is none of these."""

    settle: bool = option(
        True,
        "on GPUs, whether to wait until clocks have settled and to time 2 s or more; else as on CPUs",
        alters="nothing",
        is_later=True,
    )

    @classmethod
    def settles(cls, point: Point) -> bool:
        return bool(point.get("settle", True))


def burst(observation: Observation) -> Summary | None:
    """Time of the first iterations, before clocks came down, from the slowest rank; None where none were kept apart."""
    warm_ups = [timing.warm_up for timing in observation.timing]
    own = [warm_up.burst_s for warm_up in warm_ups if warm_up is not None]
    return summarise([max(samples) for samples in zip(*own, strict=True)]) if own else None
