"""A training step inside each of several nodes, all at once: what ``each_node: true`` makes of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from clusterbench.benchmarks import Benchmark
from clusterbench.benchmarks.train_step import TrainStep, formulas_of
from clusterbench.errors import SuiteError, WrongResult
from clusterbench.measured.nodes import BY_NODE, agreements_of_nodes, node_metrics
from clusterbench.measured.step import EVIDENCE
from clusterbench.types import PROOF_TIME, Agreement, Case, Metric, MetricKind, Observation, Place, Point, Step

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig
    from clusterbench.run_folder.attempts import History

Shown = TypeVar("Shown")

_NAMES = {*BY_NODE, *EVIDENCE, "agreement", PROOF_TIME}


@dataclass(frozen=True, kw_only=True)
class NodeStep(Benchmark):
    """How fast each node trains by itself, and that it trains right: ``train_step`` with ``each_node: true``.

    The ranks of a node are a world of their own, in which nothing of another node is known. All nodes run the same step
    of the same tokens at the same time, each held against one rank, and their losses against one another: a node that
    computes something else is named, and so is one that computes longer.
    """

    version: ClassVar[int] = 1
    own_start: ClassVar[bool] = True
    world_is_node: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = TrainStep.modules
    metrics: ClassVar[tuple[MetricKind, ...]] = tuple(kind for kind in TrainStep.metrics if kind.name in _NAMES)

    def points(self, place: Place) -> Iterable[Point]:
        return [{"source": "no suite"}]

    def label(self, point: Point) -> str:
        return "no-suite"

    def objection(self, point: Point, place: Place) -> str | None:
        return "'node_step' is no benchmark of a suite: 'each_node: true' makes its cases of train_step's"

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        if "source" in point:
            raise SuiteError("'node_step' has no step of its own.")
        step = TrainStep.prepare(rig, point)
        return replace(
            step,
            check=lambda: _on(rig.host, step.check),
            confirm=lambda is_first: _on(rig.host, lambda: step.confirm(is_first)),
        )

    @classmethod
    def compiles(cls, point: Point) -> bool:
        return TrainStep.compiles(point)

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        return node_metrics(case, formulas_of(case), observation, place.cluster)

    @classmethod
    def agreements(cls, histories: Sequence[History]) -> Mapping[str, Agreement]:
        return agreements_of_nodes(histories)


def _on(host: str, look: Callable[[], Shown]) -> Shown:
    """What is wrong is wrong on one node."""
    try:
        return look()
    except WrongResult as error:
        raise WrongResult(f"on {host}: {error}", error.evidence) from None
