"""DeepSpeed's ZeRO, stages 1 to 3, with the decoder of this project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere
from clusterbench.expected.formulas import StepFormulas
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.parallel import Parallelism
from clusterbench.parallel.data import DataParallel
from clusterbench.parallel.fsdp import FullySharded
from clusterbench.parallel.recompute import Recompute
from clusterbench.parallel.zero import ZeroOptimizer
from clusterbench.precision import MASTER
from clusterbench.trainers import Trainer
from clusterbench.trainers.deepspeed.expected import DeepSpeedFormulas, expected_of_deepspeed
from clusterbench.types import Expected, split_key

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.grid import Grid
    from clusterbench.training.built_step import BuiltStep


class DeepSpeed(Trainer):
    """DeepSpeed's engine with its defaults and ``torch.optim.AdamW``: dense models over dp, with ZeRO 1, 2 or 3.

    Its masters are float32 and shared out flat, in every stage; what it computes with in bfloat16 are copies. It has no
    float64, so its step is proven in its own dtype.

    Source
    ------
    Rajbhandari et al. 2019, arXiv:1910.02054; https://github.com/deepspeedai/DeepSpeed
    """

    runs_in_float64: ClassVar[bool] = False
    needs_data: ClassVar[str] = "trainer deepspeed reads the norm of its gradients, which a dry run has not"

    def objection(self, job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
        if job.shape.has_experts:
            return f"trainer deepspeed runs dense models; {job.shape.name} has {job.shape.num_experts} experts"
        if job.dtype == "float64":
            return f"trainer deepspeed runs in float32 and bfloat16; this {job.layout} is in float64"
        if not job.layout.zero:
            return f"trainer deepspeed shares a step over dp with zero1, zero2 or zero3; this is {job.layout}"
        concerned = [parallelism for parallelism in active if parallelism.concerned(job.layout, job.shape)]
        own = DataParallel(), ZeroOptimizer(), FullySharded()
        others = [
            type(parallelism).__name__
            for parallelism in concerned
            if parallelism not in own and not isinstance(parallelism, Recompute)
        ]
        if others:
            needs = ", ".join(others)
            return (
                "trainer deepspeed shares a step over dp alone, with no option but recompute; this "
                f"{job.layout} needs {needs}"
            )
        if job.precision != MASTER:
            return f"trainer deepspeed keeps float32 weights; this step has precision {job.precision}"
        return job.objection()

    def predict(
        self, job: TrainingJob, every: Sequence[Parallelism], cluster: Cluster, parity: bool
    ) -> Mapping[str, Expected]:
        """That of ours but for memory and traffic, of which DeepSpeed has its own."""
        expected = super().predict(job, every, cluster, parity)
        own = "peak_memory", "memory_at_rest", "memory_deviation", "traffic_bytes", "collectives"
        alike = {key: what for key, what in expected.items() if split_key(key)[0] not in own}
        return {**alike, **dict(expected_of_deepspeed(job))}

    def formulas(self, job: TrainingJob, every: Sequence[Parallelism], rank_order: str) -> StepFormulas:
        return DeepSpeedFormulas(job, tuple(every), rank_order)

    def copies(self, job: TrainingJob, active: Sequence[Parallelism]) -> Mapping[str, int]:
        """One, in every stage: shown are the float32 masters."""
        return dict.fromkeys(weight_shapes(job.on_one_rank()), 1)

    def build(
        self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid | None, device: torch.device
    ) -> BuiltStep:
        from clusterbench.trainers.deepspeed.step import DeepSpeedStep

        if find_spec("deepspeed") is None:
            raise NotHere(
                "trainer deepspeed runs the package of that name, which is not installed here: "
                "pip install 'clusterbench[deepspeed]'"
            )
        assert grid is not None
        return DeepSpeedStep(job, every, grid, device)
