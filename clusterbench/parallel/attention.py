"""Which kernel computes attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism, Twin
from clusterbench.parallel.context import ContextParallel
from clusterbench.shape import ModelShape

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly

ON_CPU = ("flash", "math")
HALF_ONLY = ("flash", "flash3", "cudnn")
"""On CUDA these take 16 bits a number and nothing wider."""


@dataclass(frozen=True, kw_only=True)
class AttentionBackend(Parallelism):
    """Has attention computed by one kernel, not by the one that torch would choose (torch.nn.attention.sdpa_kernel).

    Notes
    -----
    ``flash`` is the FlashAttention 2 that torch brings, on CPUs torch's own of the same kind; ``flash3`` puts
    FlashAttention 3 in its place, where the wheel flash-attn-3 is installed; ``cudnn`` and ``efficient`` are
    cuDNN's and xFormers'; ``math`` is made of plain operators and stores all scores. What ran in the forwards of a step
    is counted by its operators (``attention_calls``), whatever was asked for; FlashAttention 3 runs under the operator
    of 2 and counts as ``flash``.

    Ring and all-gather attention call operators of their own, which have to give the log-sum-exp.

    Source
    ------
    Dao 2023, arXiv:2307.08691 (FlashAttention 2). Shah et al. 2024, arXiv:2407.08608 (3).
    """

    phase: ClassVar[str] = "context"

    attention_backend: str = option(
        "auto",
        "kernel that computes attention; auto leaves it to torch. flash3, cudnn and efficient need a GPU",
        choices=("auto", "flash", "flash3", "cudnn", "efficient", "math"),
        label="{} attention",
        alters="nothing",
        is_later=True,
    )

    def active(self, layout: ParallelLayout) -> bool:
        return self.attention_backend != "auto"

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return True

    def objection(self, job: TrainingJob) -> str | None:
        wanted = f"attention_backend {self.attention_backend}"
        if job.device == "cpu" and self.attention_backend not in ON_CPU:
            return f"{wanted} needs a GPU; on CPUs torch has {' and '.join(ON_CPU)}"
        if job.device == "cuda" and self.attention_backend in HALF_ONLY and job.dtype != "bfloat16":
            shares_keys = job.shape.num_kv_heads != job.shape.num_heads
            others = "math computes in it" if shares_keys else "efficient takes float32, math both"
            return f"{wanted} computes in 16 bits only, not in {job.dtype}; {others}"
        if job.device == "cuda" and self.attention_backend == "efficient" and job.dtype == "float64":
            return f"{wanted} does not compute in float64; math does"
        shape = job.shape
        if self._takes_heads_as_they_are and shape.head_dim % job.head_unit:
            return (
                f"{wanted} takes heads of a multiple of {job.head_unit} channels in {job.dtype}, and {shape.name} has "
                f"heads of {shape.head_dim}; flash, in bfloat16, and math take any"
            )
        if self.attention_backend == "efficient" and shape.num_kv_heads != shape.num_heads:
            return (
                f"{wanted} takes as many heads of keys as of queries, and {shape.name} has {shape.num_kv_heads} for "
                f"{shape.num_heads}; flash, cudnn and math take groups"
            )
        return None

    @property
    def _takes_heads_as_they_are(self) -> bool:
        return self.attention_backend in ("efficient", "cudnn")  # torch fills them up for flash attention

    def twin(self, job: TrainingJob) -> Twin:
        return Twin(head_dim=job.head_unit if self._takes_heads_as_they_are else 0)

    def clash(self, job: TrainingJob, others: Sequence[Parallelism]) -> str | None:
        for other in others:
            if isinstance(other, ContextParallel) and other.context != "ulysses":
                return (
                    f"attention_backend {self.attention_backend} and context {other.context}, which calls operators of "
                    "its own: they have to give the log-sum-exp; context ulysses takes any kernel"
                )
        return None

    def exact(self) -> Self:
        # no kernel but math computes in float64 on CUDA
        return self if self.stores_scores else replace(self, attention_backend="auto")

    @property
    def stores_scores(self) -> bool:
        return self.attention_backend == "math"

    def without_data(self) -> tuple[Self, str]:
        if not self.active(ParallelLayout()) or self.stores_scores:
            return self, ""
        words = "attention is flash attention's here: what another kernel keeps for backward differs by a statistic"
        return replace(self, attention_backend="auto"), words

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.engine.compat import attention_by

        assembly.contexts.append(lambda: attention_by(self.attention_backend))
