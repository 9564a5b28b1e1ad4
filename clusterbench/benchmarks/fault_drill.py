"""A planted fault, to see that this cluster's launcher and this tool bring it to light."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import WrongResult
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

FAULTS = ("none", "raise", "exit", "segfault", "kill", "stop", "hang", "out_of_memory", "wrong")


@dataclass(frozen=True, kw_only=True)
class FaultDrill(Benchmark):
    """All-reduces of one element, during which one rank fails on purpose.

    Run it on a new cluster before trusting a silent night: every fault must come out as a row that names the rank, and
    the cases after it must run.
    """

    metrics: ClassVar[tuple[MetricKind, ...]] = (MetricKind("step_time", "s", "lower", "time of one iteration"),)

    fault: tuple[str, ...] = option(("none",), "what goes wrong; each is a case", choices=FAULTS)
    phase: str = option("run", "where it goes wrong", choices=("prepare", "check", "run"))
    rank: int = option(0, "the rank that fails; counts from the last if the case has fewer", minimum=0)
    sleep_s: float = option(0.0, "seconds each iteration sleeps, so that a person can interfere", minimum=0)

    def points(self, place: Place) -> Iterable[Point]:
        for fault in self.fault:
            yield {"fault": fault, "phase": self.phase, "rank": self.rank, "sleep_s": self.sleep_s}

    def label(self, point: Point) -> str:
        return f"{point['fault']}-in-{point['phase']}"

    def objection(self, point: Point, place: Place) -> str | None:
        if point["fault"] == "wrong" and point["phase"] != "check":
            return "a wrong result can only be found in the check: give phase: check"
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        is_culprit = rig.rank == min(int(point["rank"]), rig.world_size - 1)
        iterations = 0
        array = rig.full(1, "float32", value=1)

        def maybe(phase: str) -> None:
            if is_culprit and point["phase"] == phase:
                _go_wrong(str(point["fault"]), rig)

        def check() -> Mapping[str, float]:
            maybe("check")
            rig.comm.all_reduce(array, "max")
            return rig.expect_equal("all_reduce", array, rig.full(1, "float32", value=1))

        def run() -> None:
            nonlocal iterations
            iterations += 1
            time.sleep(float(point["sleep_s"]))
            if iterations == 5:
                maybe("run")
            rig.comm.all_reduce(array, "max")

        maybe("prepare")
        return Step(run=run, check=check)

    @classmethod
    def derive(cls, case: Case, observation: Observation) -> Iterable[Metric]:
        spent = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
        yield Metric("step_time", "s", spent.value, spent.low, spent.high, spent.n)


def _go_wrong(fault: str, rig: Rig) -> None:
    if fault == "raise":
        raise RuntimeError("planted by fault_drill")
    if fault == "exit":
        os._exit(7)
    if fault in ("segfault", "kill", "stop"):
        number = {"segfault": signal.SIGSEGV, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault]
        os.kill(os.getpid(), number)
    if fault == "hang":
        while True:
            time.sleep(60)
    if fault == "out_of_memory":
        rig.empty(2**50, "float32")
    if fault == "wrong":
        raise WrongResult(
            f"fault_drill gave a wrong result on rank {rig.rank} (host {rig.host}), as the suite asked it to"
        )
