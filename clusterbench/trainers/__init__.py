"""Code that runs a training step: ours, or somebody else's. One file or folder each, found by its name.

Adding one is adding it here with its test; a suite names it with ``trainer: NAME``. A trainer says two things: which
jobs it can run and what is expected of them (the describing half, read with torch blocked), and how a step is built
(``build``, the only place that may import torch). What it builds is proven, timed, watched and reported by the same
code as every other trainer's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cluster import Cluster
from clusterbench.discover import things
from clusterbench.expected.copies import copies_of
from clusterbench.expected.formulas import StepFormulas
from clusterbench.expected.step import expected_step
from clusterbench.job import OURS, TrainingJob
from clusterbench.parallel import Parallelism
from clusterbench.types import Expected, Point

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.grid import Grid
    from clusterbench.training.built_step import BuiltStep


@dataclass(frozen=True)
class Trainer(ABC):
    """One way of running a training step.

    Attributes
    ----------
    runs_in_float64
        Whether its step can be proven in float64. One that cannot is proven in the dtype of the job, and the basis of
        its tolerance says so.
    needs_data
        Why its step cannot be run on tensors without data; empty where it can.
    """

    runs_in_float64: ClassVar[bool] = True
    needs_data: ClassVar[str] = ""

    @abstractmethod
    def objection(self, job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
        """Why it cannot run this job, as a sentence with the values; None when it can.

        ``active`` are the parallelisms that do something in the job's layout.
        """

    def predict(
        self, job: TrainingJob, every: Sequence[Parallelism], cluster: Cluster, parity: bool
    ) -> Mapping[str, Expected]:
        """Metric key -> what is expected of a step; see :func:`clusterbench.expected.step.expected_step`.

        A trainer whose operators are not those of our decoder leaves out ``executed_flops``, which is then not judged.
        """
        return expected_step(job, every, cluster, parity, self.runs_in_float64)

    def formulas(self, job: TrainingJob, every: Sequence[Parallelism], rank_order: str) -> StepFormulas:
        """What each rank's counted traffic, memory and FLOPs are held against, where :meth:`predict` has a figure."""
        return StepFormulas(job, tuple(every), rank_order)

    def copies(self, job: TrainingJob, active: Sequence[Parallelism]) -> Mapping[str, int]:
        """By weight of the whole model: on how many ranks each element is, of the parts that a step shows."""
        return dict(copies_of(job, active))

    @abstractmethod
    def build(
        self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid | None, device: torch.device
    ) -> BuiltStep:
        """The step of this rank, its weights filled from the job's seed. Communicates nothing.

        Parameters
        ----------
        job
            Of any size and dtype: the case's own, or the small twin of the proof.
        every
            All parallelisms with their options.
        """


def trainers() -> Mapping[str, type[Trainer]]:
    """All trainers by name."""
    return things("clusterbench.trainers", Trainer)


def trainer_of(point: Point) -> Trainer:
    """The trainer a point asks for."""
    return trainers()[point.get("trainer", OURS)]()
