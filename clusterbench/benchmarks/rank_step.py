"""One rank of a layout, computing for real with nothing sent: what ``communication: fake`` makes of a training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks._sustained import SustainedBenchmark
from clusterbench.benchmarks.train_step import job_of, rank_of
from clusterbench.errors import SuiteError
from clusterbench.expected.rank import EXECUTED
from clusterbench.formulas.statistics import summarise
from clusterbench.job import passes
from clusterbench.job.flops import UNKNOWN
from clusterbench.layout import AXES
from clusterbench.measured.memory import memory_metrics
from clusterbench.measured.step import SAW_NOTHING
from clusterbench.measured.traffic import traffic_metrics
from clusterbench.parallel import from_options
from clusterbench.run_folder.passes import OWN_SECONDS, Pass
from clusterbench.types import NOTHING_SENT, Case, Metric, MetricKind, Observation, Place, Point, Step
from clusterbench.words import Word

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

COMPILED = ("compiled_frames", "graph_breaks")
OPERATORS: Pass[int | None] = Pass("operators", int | None)
"""None of a compiled step, whose kernels are no operators."""


@dataclass(frozen=True, kw_only=True)
class RankStep(SustainedBenchmark):
    """How long one rank of a large layout computes, alone, and what it holds: ``train_step`` with fake communication.

    The step is that of ``train_step``, on a real device with real tensors, in a process group that sends nothing:
    collectives return at once, with copies of what the rank has itself. So the layout's ranks need not exist. What is
    computed means nothing and is not proven, and there are no tokens/s.
    """

    version: ClassVar[int] = 1
    own_start: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = (
        "torch.distributed.optim",
        "torch.distributed.pipelining",
        "torch.testing._internal.distributed.fake_pg",
        "clusterbench.proof.timed_step",
        "clusterbench.training.passes",
    )
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind("rank_time", "s", "lower", "one step of the rank: computing and launching, with nothing sent"),
        MetricKind("compute_time", "s", "lower", "of it the device computes; on a CPU seconds of the step's thread"),
        MetricKind("peak_memory", "B", "lower", "most bytes in live tensors during a step of the rank", exact=True),
        MetricKind("memory_at_rest", "B", "lower", "bytes of its states between steps", exact=True),
        MetricKind(
            "num_alloc_retries", "1", "lower", "times a full GPU made PyTorch's allocator empty its cache", exact=True
        ),
        MetricKind(
            "traffic_bytes", "B", "lower", "bytes x bus factor that it would move along an axis in a step", exact=True
        ),
        MetricKind("collectives", "1", "lower", "collectives that it calls along an axis in a step", exact=True),
        MetricKind("operators", "1", "lower", "operators that the host launches in a step", exact=True),
        MetricKind(EXECUTED, "FLOP", "neither", "of products and attention, in a step of the rank", exact=True),
        MetricKind("compiled_frames", "1", "neither", "functions that torch.compile made of the timed step"),
        MetricKind("graph_breaks", "1", "lower", "how often a compiled function had to be left for Python", exact=True),
    )

    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "Fake communication",
            "One rank of a layout computes alone on a real device. Its collectives return at once and nothing is sent, "
            "so what it computes has no meaning, and its time is that of no layout.",
            "fake|alone",
        ),
    )

    def points(self, place: Place) -> Iterable[Point]:
        return [{"source": "no suite"}]

    def label(self, point: Point) -> str:
        return "no-suite"

    def objection(self, point: Point, place: Place) -> str | None:
        return "'rank_step' is no benchmark of a suite: 'communication: fake' makes its cases of train_step's"

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        from clusterbench.engine.launches import count_operators
        from clusterbench.engine.own_work import OwnWork, own_seconds
        from clusterbench.proof.timed_step import TimedStep
        from clusterbench.training.built_step import is_compiled
        from clusterbench.training.data import of_own_vocabulary
        from clusterbench.training.passes import STEPS_TO_BUILD, passes_of
        from clusterbench.training.step import TrainingStep

        if "source" in point:
            raise SuiteError("'rank_step' has no step of its own.")
        job, every = job_of(point, rig.device.type), from_options(point)
        grid = rig.be_one_of(job.layout, rank_of(point), str(point["rank_order"]))
        step = TrainingStep(job, every, grid, rig.device)
        step.micro_batches = of_own_vocabulary(step.micro_batches, job, grid.rank("tp"))
        timed = TimedStep(step, rig.asked_calls, sketches=False)
        run = OwnWork(timed, rig.device)
        seen = passes_of(step, rig)
        return Step(
            run=run,
            check=dict,
            passes={
                **{kind.name: seen[kind.name] for kind in (passes.MEMORY, passes.TRAFFIC, passes.EXECUTED)},
                **OPERATORS.taken(lambda: None if is_compiled(step) else count_operators(step)),
                **OWN_SECONDS.taken(lambda: own_seconds(step, rig, run.spent_s[STEPS_TO_BUILD:])),
            },
            confirm=lambda is_first: timed.confirm(rig, is_first=False),
        )

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        for metric in _figures(case, observation):
            yield metric._replace(detail={**metric.detail, "source": NOTHING_SENT})


def _figures(case: Case, observation: Observation) -> Iterator[Metric]:
    time = summarise(observation.seconds[0])
    yield Metric("rank_time", "s", time.value, time.low, time.high, time.n, basis=in_words(case.point))
    for own_s in OWN_SECONDS.of(observation):
        if not any(own_s):
            yield Metric("compute_time", "s", None, basis=SAW_NOTHING)
            continue
        own = summarise(own_s)
        basis = "CPU seconds of one thread" if case.device == "cpu" else "kernels and copies, by the profiler"
        yield Metric("compute_time", "s", own.value, own.low, own.high, own.n, basis=basis)
    yield from memory_metrics(case, passes.MEMORY.of(observation), [])
    yield from traffic_metrics(passes.TRAFFIC.of(observation), [])
    for count in OPERATORS.of(observation):
        why = "a compiled layer launches kernels that are no operators" if count is None else ""
        yield Metric("operators", "1", None if count is None else float(count), basis=why)
    for executed in passes.EXECUTED.of(observation):
        yield Metric(EXECUTED, "FLOP", float(sum(each.flops for each in executed if each.kind != UNKNOWN)))
    evidence: Mapping[str, float] = next(iter(observation.evidence), {})
    yield from (Metric(name, "1", evidence[name]) for name in COMPILED if name in evidence)


def in_words(point: Point) -> str:
    """``rank 2 of 4 (pp 2), alone: nothing was sent``."""
    layout, rank = job_of(point).layout, rank_of(point)
    at = layout.coordinates(rank, str(point["rank_order"]))
    place = ", ".join(f"{axis} {at[axis]}" for axis in AXES if layout.degree(axis) > 1)
    return f"rank {rank} of {layout.world_size} ({place}), alone: nothing was sent, so it is no step time of {layout}"
