"""What can be measured: one file a benchmark, found by its name.

Adding one is adding a file here and its test. A benchmark is a frozen dataclass whose fields are its YAML keys. Its
describing half (``points``, ``objection``, ``predict``, ``derive``) is pure and is read by ``plan`` and ``report`` on
machines without torch, so torch is imported inside ``prepare`` only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from clusterbench.discover import things
from clusterbench.formulas.statistics import summarise
from clusterbench.options import Option, option, options_of
from clusterbench.types import (
    SAMPLES,
    Agreement,
    Case,
    Expected,
    Metric,
    MetricKind,
    Observation,
    Place,
    Point,
    Step,
    split_key,
)
from clusterbench.words import Word

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig
    from clusterbench.rows import Row
    from clusterbench.run_folder.attempts import History


@dataclass(frozen=True, kw_only=True)
class Benchmark(ABC):
    """Something to repeat and time, and what to make of the samples.

    Attributes
    ----------
    version
        Raised when a change makes old observations incomparable; part of every case's identity.
    own_start
        True when each case wants fresh processes; False when hundreds of points share one start.
    on_host
        True for what never touches a GPU: its ranks are CPU ranks, also where there are GPUs.
    world_is_node
        True for what the ranks of each node do by themselves: they know of no other node.
    in_agents
        True for what agents under an MPI launcher run themselves, because a worker cannot be a rank of their MPI.
    is_timed
        False where the seconds of a case are not those of what it tells.
    ranks_work_alone
        True where all ranks do the same in an iteration and none waits for another, so that a slow rank shows in it.
    variables
        Environment variables that every start needs; the suite's own word comes first.
    modules
        What its ranks import and others do not, and what computes nothing when it is: imported once a host, before
        ranks are forked.
    metrics
        Every metric ``derive`` may yield.
    predicts
        Those that ``predict`` may have an expectation of, by name: what a floor may be a share of.
    refused_options
        Options people look for and will not find, each with the reason.
    glossary
        Words of the field that it brings.
    """

    version: ClassVar[int] = 1
    own_start: ClassVar[bool] = False
    on_host: ClassVar[bool] = False
    in_agents: ClassVar[bool] = False
    world_is_node: ClassVar[bool] = False
    is_timed: ClassVar[bool] = True
    ranks_work_alone: ClassVar[bool] = False
    variables: ClassVar[Mapping[str, str]] = {}
    modules: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[MetricKind, ...]] = ()
    predicts: ClassVar[tuple[str, ...]] = ()
    refused_options: ClassVar[Mapping[str, str]] = {}
    glossary: ClassVar[tuple[Word, ...]] = ()

    iterations: int = option(20, "timed repetitions of a case", minimum=1, maximum=1_000_000)
    warmup: int = option(3, "repetitions before them, run and not timed", minimum=0, maximum=1_000_000)
    time_limit_s: float | None = option(
        None,
        "seconds after which a case is stopped, from when its ranks have met; by default it grows with ranks and bytes",
        minimum=0.1,
        maximum=604_800,
    )
    expect: tuple[str, ...] = option(
        (),
        "outcomes that are no failure of the run",
        choices=("wrong", "failed", "timeout", "out_of_memory"),
    )

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        """The YAML keys, by name."""
        return options_of(cls)

    @classmethod
    def has_choices(cls) -> bool:
        """Whether the same work can be done in several ways."""
        return any(option.alters == "nothing" for option in cls.options().values())

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
        """The benchmark with these values; sweeps are already resolved to one value each."""
        return cls(**values)

    def ineffective(self, keys: Sequence[str], place: Place) -> Iterable[tuple[str, str]]:
        """Those of the ``keys`` a suite wrote that have no effect here, each with the reason: mistakes of the suite."""
        return ()

    @abstractmethod
    def points(self, place: Place) -> Iterable[Point]:
        """Everything to measure at ``place``, each point complete and flat. Finite and without duplicates."""

    @abstractmethod
    def label(self, point: Point) -> str:
        """The values in which this point differs from others, short, without spaces or slashes: ``64MiB-bfloat16``."""

    def world_size(self, point: Point, place: Place) -> int:
        """Ranks the point needs. All of the place unless the point says otherwise."""
        return place.world_size

    def layout(self, point: Point) -> str | None:
        """The parallel layout whose mesh the worker builds for this point."""
        return None

    def kind_of_case(self, point: Point) -> str | None:
        """The benchmark whose case a point is, by its name; None for this one."""
        return None

    def objection(self, point: Point, place: Place) -> str | None:
        """Why the point cannot be, on any machine of this kind; None when it can."""
        return None

    def predict(self, point: Point, place: Place) -> Mapping[str, Expected]:
        """What a case should show, by metric key. Empty where nothing is known: never a guess."""
        return {}

    # Workers and reports have the point and not the options it came from. A point is complete, so these need none.

    @classmethod
    @abstractmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        """Allocates on this rank's device and returns what to run. Never communicates."""

    @classmethod
    def settles(cls, point: Point) -> bool:
        """Whether a case is timed on GPUs once clocks have settled, for two seconds at least."""
        return False

    @classmethod
    def compiles(cls, point: Point) -> bool:
        """Whether a compiler has to run before a case can be timed; its deadline is later by that."""
        return False

    @classmethod
    def proof_key(cls, point: Point, device: str) -> str | None:
        """All that what the check proves depends on, but for the ranks themselves; None where each case checks itself.

        Cases of one key on the same ranks are proven once.
        """
        return None

    @classmethod
    @abstractmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        """Metrics of one case, from seconds and bytes; ``place`` is where it ran, by what is on record of it today."""

    @classmethod
    def sampled(cls, observation: Observation) -> Iterator[Metric]:
        """Metrics of the pass ``samples``: one for each key, over the values of all ranks that have it."""
        units = {kind.name: kind.unit for kind in cls.metrics}
        values: dict[str, list[float]] = {}
        for rank in observation.passes.get(SAMPLES, ()):
            for key, of_rank in rank.items():
                values.setdefault(key, []).extend(of_rank)
        for key, samples in values.items():
            name, detail = split_key(key)
            summary = summarise(samples)
            yield Metric(name, units[name], summary.value, summary.low, summary.high, summary.n, detail=detail)

    @classmethod
    def size_bytes(cls, point: Point) -> int:
        """What one iteration moves between ranks, roughly; a case's deadline grows with it."""
        return int(point.get("size_bytes", 0))

    @classmethod
    def cost(cls, point: Point) -> float:
        """How much longer this point takes than others of its benchmark, in any unit."""
        return float(cls.size_bytes(point))

    @classmethod
    def one_rank_key(cls, case: Case) -> str:
        """What cases have in common that show the same on one rank; empty where that is not asked.

        Of those that share a key one is computed on one rank behind its clock, too.
        """
        return ""

    @classmethod
    def agreements(cls, histories: Sequence[History]) -> Mapping[str, Agreement]:
        """Hash -> how a case agrees with those that should have computed the same; empty where none should.

        ``histories`` are this benchmark's cases of the run.
        """
        return {}

    @classmethod
    def across(cls, rows: Sequence[Row]) -> Iterable[Row]:
        """Rows that need more than one case of the run: efficiencies, shares of a measured peak.

        ``rows`` are all rows of the run.
        """
        return ()


def benchmarks() -> Mapping[str, type[Benchmark]]:
    """All benchmarks by name."""
    return things("clusterbench.benchmarks", Benchmark)


def same_work(case: Case) -> object:
    """Equal for cases on as many nodes that do the same work in ways of their own: what alters a result is the same."""
    kind = benchmarks().get(case.benchmark)
    if kind is None:
        return case.id
    altering = [(name, option.default) for name, option in kind.options().items() if option.alters != "nothing"]
    return case.benchmark, case.num_nodes, tuple(case.point.get(name, default) for name, default in altering)
