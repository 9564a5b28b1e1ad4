"""A planted fault, to see that this cluster's launcher and this tool bring it to light."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import NotHere
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.run_folder.passes import OWN_SECONDS
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

FAULTS = (
    "none",
    "raise",
    "exit",
    "segfault",
    "kill",
    "stop",
    "hang",
    "slow",
    "out_of_memory",
    "out_of_host_memory",
    "out_of_shared_memory",
    "wrong",
)
NUM_ELEMENTS, WRONG_INDEX = 1000, 700
SLOW_S = 0.03
OWN_ITERATIONS = 24  # a slow rank stands out of them even where they are not independent
MOST_BYTES_TO_FILL = 4 * 2**30
"""A drill may not drive a whole host out of memory; it only fills what a cgroup or a small /dev/shm limits."""


@dataclass(frozen=True, kw_only=True)
class FaultDrill(Benchmark):
    """Small all-reduces, during which one rank fails on purpose.

    Run it on a new cluster before relying on its runs: every fault must come out as a row that names the rank, and
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
        if point["fault"] == "slow" and point["phase"] != "run":
            return "a slow rank shows in what is timed: give phase: run"
        return None

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        is_culprit = rig.rank == min(int(point["rank"]), rig.world_size - 1)
        iterations = 0
        array = rig.full(NUM_ELEMENTS, "float32", value=1)

        def maybe(phase: str) -> None:
            if is_culprit and point["phase"] == phase:
                _go_wrong(str(point["fault"]), rig)

        def check() -> Mapping[str, float]:
            maybe("check")
            rig.comm.all_reduce(array, "max")
            if is_culprit and point["fault"] == "wrong":
                array[WRONG_INDEX] = 0  # what a bad link or memory does without an error
            return rig.expect_equal("fault_drill", array, rig.full(NUM_ELEMENTS, "float32", value=1))

        def work() -> None:
            nonlocal iterations
            iterations += 1
            time.sleep(float(point["sleep_s"]))
            if iterations == 5 or point["fault"] == "slow":
                maybe("run")

        def run() -> None:
            work()
            rig.comm.all_reduce(array, "max")

        def own_seconds() -> list[float]:
            """What this rank spends before it waits for the others, which hides a slow one from the clock."""
            spent = []
            for _ in range(OWN_ITERATIONS):
                start_s = time.perf_counter()
                work()
                spent.append(time.perf_counter() - start_s)
                rig.comm.all_reduce(array, "max")
            return spent

        maybe("prepare")
        return Step(run=run, check=check, passes=OWN_SECONDS.taken(own_seconds) if point["fault"] == "slow" else {})

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
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
    if fault == "slow":
        time.sleep(SLOW_S)
    if fault == "out_of_memory":
        rig.empty(2**50, "float32")
    if fault == "out_of_host_memory":
        _fill_host_memory()
    if fault == "out_of_shared_memory":
        _fill_shared_memory()


def _fill_host_memory() -> None:
    from clusterbench.engine.host_memory import memory_limit_bytes

    limit = memory_limit_bytes()
    if limit > MOST_BYTES_TO_FILL:
        raise NotHere(
            f"processes may use {limit / 2**30:.1f} GiB here, and the drill fills no more than "
            f"{MOST_BYTES_TO_FILL / 2**30:.0f}: run it in a cgroup with a lower limit"
        )
    taken = []
    while True:
        taken.append(bytearray(b"x" * 2**26))


def _fill_shared_memory() -> None:
    disk = os.statvfs("/dev/shm")
    if (free := disk.f_bavail * disk.f_frsize) > MOST_BYTES_TO_FILL:
        raise NotHere(
            f"/dev/shm has {free / 2**30:.1f} GiB free, and the drill fills no more than "
            f"{MOST_BYTES_TO_FILL / 2**30:.0f}: run it where it is smaller"
        )
    path = f"/dev/shm/clusterbench-{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.unlink(path)
        os.posix_fallocate(descriptor, 0, free + 2**20)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)
