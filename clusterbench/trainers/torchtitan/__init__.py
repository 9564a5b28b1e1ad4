"""torchtitan's Llama with its FSDP, tensor and sequence parallelism, and the step of its trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere
from clusterbench.expected.formulas import StepFormulas
from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, active_in, objection_to
from clusterbench.parallel.compile import Compile
from clusterbench.parallel.data import DataParallel
from clusterbench.parallel.fsdp import FullySharded
from clusterbench.parallel.recompute import Recompute
from clusterbench.parallel.sequence import SequenceParallel
from clusterbench.parallel.tensor import TensorParallel
from clusterbench.precision import MASTER
from clusterbench.trainers import Trainer
from clusterbench.trainers.torchtitan.expected import (
    MASTER_BYTES,
    TorchtitanFormulas,
    expected_flops_of_torchtitan,
    expected_of_torchtitan,
)
from clusterbench.types import Expected, split_key

if TYPE_CHECKING:
    import torch

    from clusterbench.engine.grid import Grid
    from clusterbench.training.built_step import BuiltStep


class Torchtitan(Trainer):
    """torchtitan's Llama 3, shared with its own ``parallelize_llama``: dense models over dp with ZeRO 3, and tp.

    With its defaults, but for three. Attention is PyTorch's ``scaled_dot_product_attention``, as ours is, and not
    FlexAttention with masks of documents, of which each sequence here is one. Queries, keys and values are made by
    products of their own and turned in the half-split arrangement, as our weights are made for. Its parallelism is
    its ``partial_dtensor``: the default, ``spmd_types``, takes the FSDP of a PyTorch that is newer than 2.13.

    Source
    ------
    Liang et al. 2024, arXiv:2410.06511; https://github.com/pytorch/torchtitan
    """

    runs_in_float64: ClassVar[bool] = False
    needs_data: ClassVar[str] = "trainer torchtitan looks up positions and labels by value, which a dry run has not"

    def objection(self, job: TrainingJob, active: Sequence[Parallelism]) -> str | None:
        layout = job.layout
        if job.shape.has_experts:
            return f"trainer torchtitan runs dense models here; {job.shape.name} has {job.shape.num_experts} experts"
        if job.dtype == "float64":
            return f"trainer torchtitan runs in float32 and bfloat16; this {layout} is in float64"
        if layout.world_size == 1 or (layout.dp > 1 and layout.zero != 3):
            return f"trainer torchtitan shares a step over dp with zero3 and over tp; this is {layout}"
        own = (
            *(DataParallel(), FullySharded(), TensorParallel(), SequenceParallel()),
            *(Recompute(recompute="full"), Compile(compile=True)),
        )
        others = [
            type(parallelism).__name__
            for parallelism in active
            if parallelism.concerned(layout, job.shape) and parallelism not in own
        ]
        if others:
            return (
                "trainer torchtitan shares a step over dp and tp, with no option but compile and recompute: full; this "
                f"{layout} needs {', '.join(others)}"
            )
        if job.shape.num_kv_heads % layout.tp:
            return (
                f"trainer torchtitan cuts keys and values over tp as queries; {job.shape.num_kv_heads} kv heads of "
                f"{job.shape.name} do not come out even over tp{layout.tp}"
            )
        if job.precision != MASTER or job.gradient_bytes != MASTER_BYTES:
            return (
                "trainer torchtitan keeps weights and reduces gradients in float32; this step has precision "
                f"{job.precision} and gradients of {job.gradient_bytes} bytes"
            )
        return objection_to(job, active)

    def predict(
        self, job: TrainingJob, every: Sequence[Parallelism], cluster: Cluster, parity: bool
    ) -> Mapping[str, Expected]:
        """That of ours but for memory, traffic and FLOPs, of which torchtitan has its own."""
        expected, active = super().predict(job, every, cluster, parity), active_in(job.layout, every)
        own = "peak_memory", "memory_at_rest", "memory_deviation", "traffic_bytes", "collectives", "executed_flops"
        alike = {key: what for key, what in expected.items() if split_key(key)[0] not in own}
        flops = expected_flops_of_torchtitan(expected, job, active)
        return {**alike, **dict(flops), **dict(expected_of_torchtitan(job, active))}

    def formulas(self, job: TrainingJob, every: Sequence[Parallelism], rank_order: str) -> StepFormulas:
        return TorchtitanFormulas(job, tuple(every), rank_order)

    def build(
        self, job: TrainingJob, every: Sequence[Parallelism], grid: Grid | None, device: torch.device
    ) -> BuiltStep:
        from clusterbench.trainers.torchtitan.step import TorchtitanStep

        if find_spec("torchtitan") is None:
            raise NotHere(
                "trainer torchtitan runs the package of that name, which is not installed here: "
                "pip install 'clusterbench[torchtitan]'"
            )
        assert grid is not None
        return TorchtitanStep(job, every, grid, device)
