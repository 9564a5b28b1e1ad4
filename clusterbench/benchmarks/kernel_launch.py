"""What it costs to start the least of work: a kernel on a GPU, an operator on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import WrongResult
from clusterbench.formulas.statistics import summarise
from clusterbench.options import option
from clusterbench.types import Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

_METRIC = {
    "launch": "launch_time",
    "round_trip": "round_trip_time",
    "graph": "graph_node_time",
    "operator": "operator_overhead",
}
_MODES = ("launch", "round_trip", "graph")


@dataclass(frozen=True, kw_only=True)
class KernelLaunch(Benchmark):
    """How long a kernel takes that has next to nothing to do, on each rank while all ranks do the same.

    The kernel adds one to a single number, through PyTorch like everything a training step launches, so PyTorch's own
    share of a launch is in it. Launched back to back, one takes as long as the host needs to launch it, because the
    kernel itself is shorter; launched with a wait after each, as long as the way there and back; as a node of a CUDA
    graph, as long as the GPU needs. A CPU launches no kernels: there the same operator is dispatched and computed on
    the calling thread, and that is called operator overhead.

    Every launch counts itself, and none may be missing. Outside a graph each is seen to be one, too.
    """

    ranks_work_alone: ClassVar[bool] = True
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("launch_time", "s", "lower", "of one launch, many in a row without waiting, from the slowest rank"),
        MetricKind("round_trip_time", "s", "lower", "of one launch and the wait for its end, from the slowest rank"),
        MetricKind("graph_node_time", "s", "lower", "of one kernel in a CUDA graph of many, from the slowest rank"),
        MetricKind("operator_overhead", "s", "lower", "of one tiny operator on the CPU, from the slowest rank"),
    )

    modes: tuple[str, ...] = option(_MODES, "how kernels are started; of GPUs only", choices=_MODES)
    launches: int = option(1000, "launches of each repetition, whose time is divided by it", minimum=1, maximum=100_000)

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        if place.device == "cpu" and "modes" in keys:
            yield "modes", "a CPU launches no kernels, so there is one way only, 'operator'"

    def points(self, place: Place) -> Iterable[Point]:
        for mode in self.modes if place.device == "cuda" else ("operator",):
            yield {"mode": mode, "launches": self.launches}

    def label(self, point: Point) -> str:
        return f"{point['mode']}-{point['launches']}"

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        import torch

        from clusterbench.engine.launches import count_operators

        count = torch.zeros(1, dtype=torch.int64, device=rig.device)
        launches, mode = int(point["launches"]), point["mode"]

        def launch() -> None:
            for _ in range(launches):
                count.add_(1)

        def round_trip() -> None:
            for _ in range(launches):
                count.add_(1)
                torch.cuda.synchronize()

        run: Callable[[], object] = round_trip if mode == "round_trip" else launch
        if mode == "graph":
            count.add_(1)  # what a first call loads must not be loaded while the graph is recorded
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads (NCCL's watchdog) go on asking the device meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                launch()
            run = graph.replay

        def check() -> Mapping[str, float]:
            count.zero_()
            if mode == "graph":
                run()
            elif (launched := count_operators(run)) != launches:
                raise WrongResult(
                    f"a repetition launched {plural(launched, 'operator')} on rank {rig.rank} (host {rig.host}), and "
                    f"{launches:,} are counted of it."
                )
            return rig.expect_equal("launches", count, torch.full_like(count, launches))

        def confirm(is_first: bool) -> Mapping[str, float]:
            """Every launch since the check, which may be more than were asked for, but no parts of a repetition."""
            repetitions = max(1 + rig.asked_calls, int(count) // launches)
            return rig.expect_equal("launches", count, torch.full_like(count, repetitions * launches))

        return Step(run=run, check=check, confirm=confirm)

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        launches = int(case.point["launches"])
        time = summarise([max(samples) / launches for samples in zip(*observation.seconds, strict=True)])
        yield Metric(_METRIC[case.point["mode"]], "s", time.value, time.low, time.high, time.n)
