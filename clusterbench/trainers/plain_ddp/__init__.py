"""PyTorch's data parallelism as its documentation has it, and the shortest example of a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cluster import Cluster
from clusterbench.expected.memory import ACTIVATIONS, TOTAL
from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism
from clusterbench.parallel.data import DataParallel
from clusterbench.precision import MASTER
from clusterbench.trainers import Trainer
from clusterbench.types import Expected, split_key

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.grid import Grid
    from clusterbench.training.built_step import BuiltStep


def _with_more(key: str, what: Expected, more: Mapping[str, tuple[int, str]]) -> Expected:
    metric, labels = split_key(key)
    if metric not in ("peak_memory", "memory_at_rest") or labels["category"] not in more:
        return what
    size_bytes, basis = more[labels["category"]]
    return replace(what, value=what.value + size_bytes, basis=basis)


class PlainDDP(Trainer):
    """DistributedDataParallel with its defaults, ``torch.optim.AdamW`` and ``clip_grad_norm_``: dense models over dp.

    Notes
    -----
    With its defaults DDP keeps gradients and buckets apart, so gradients are in memory twice; ours has them once.
    """

    needs_data: ClassVar[str] = "the reducer of trainer plain_ddp reads data, which a dry run has not"

    def objection(self, job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
        if job.shape.has_experts:
            return f"trainer plain_ddp runs dense models; {job.shape.name} has {job.shape.num_experts} experts"
        concerned = [parallelism for parallelism in active if parallelism.concerned(job.layout, job.shape)]
        others = [type(parallelism).__name__ for parallelism in concerned if parallelism != DataParallel()]
        if others:
            needs = ", ".join(others)
            return f"trainer plain_ddp shares a step over dp alone, with no option; this {job.layout} needs {needs}"
        if job.precision != MASTER:
            return f"trainer plain_ddp keeps float32 weights; this step has precision {job.precision}"
        if job.gradient_bytes != job.master_bytes:
            return f"trainer plain_ddp has gradients as wide as its weights; gradient_dtype is {job.gradient_dtype}"
        return job.objection()

    def predict(
        self, job: TrainingJob, every: Sequence[Parallelism], cluster: Cluster, parity: bool
    ) -> Mapping[str, Expected]:
        """That of ours but for the whole memory, of which the second copy of gradients is a part without a formula.

        In bfloat16 each micro-batch rounds the weights where it uses them, and keeps that for backward: a look-up does
        not. So what is a parameter of ours is an activation here.
        """
        expected = super().predict(job, every, cluster, parity)
        of_this = {key: what for key, what in expected.items() if split_key(key)[1].get("category") != TOTAL}
        if job.compute_bytes == job.master_bytes:
            return of_this
        shape = job.shape
        table = 0 if shape.tied_embeddings else shape.vocab_size * shape.hidden_size
        rounded = (shape.num_parameters - table) * job.compute_bytes
        of_parameters = f"{shape.num_parameters:,} of {job.master_bytes} B"
        more = {
            "parameters": (-shape.num_parameters * job.compute_bytes, of_parameters),
            ACTIVATIONS: (rounded, "as ours, and the weights as each micro-batch rounds them"),
        }
        return {key: _with_more(key, what, more) for key, what in of_this.items()}

    def build(
        self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid | None, device: torch.device
    ) -> BuiltStep:
        from clusterbench.trainers.plain_ddp.step import PlainDDPStep

        return PlainDDPStep(job, grid, device)
