"""This project's own step, in which every parallelism can be mixed with every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, objection_to
from clusterbench.trainers import Trainer

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.grid import Grid
    from clusterbench.training.built_step import BuiltStep


class Ours(Trainer):
    """PyTorch's own parallelisms on one mesh, applied by the files of ``parallel/``."""

    def objection(self, job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
        return objection_to(job, active)

    def build(
        self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid | None, device: torch.device
    ) -> BuiltStep:
        from clusterbench.training.step import TrainingStep

        return TrainingStep(job, every, grid, device)
