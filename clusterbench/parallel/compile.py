"""Compilation: each layer becomes a few fused kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.shape import ModelShape

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly


@dataclass(frozen=True, kw_only=True)
class Compile(Parallelism):
    """Compiles the layers, one by one, as torchtitan does (torch.compile with its own compiler).

    Layers are alike, so the first one's code serves all. On a CPU a C++ compiler is needed. The first step compiles:
    give the case a warm-up. What a compiled layer keeps for backward is the compiler's choice: no memory is predicted.

    Source
    ------
    Ansel et al. 2024, doi:10.1145/3620665.3640366. pytorch/torchtitan, ``apply_compile``.
    """

    phase: ClassVar[str] = "compile"

    compile: bool = option(False, "compile each layer with torch.compile", label="torch.compile", alters="nothing")

    def active(self, layout: ParallelLayout) -> bool:
        return self.compile

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return True

    def objection(self, job: TrainingJob) -> str | None:
        if job.layout.uses("tp"):
            return (
                f"compile and tp{job.layout.tp}: layers see their parts of the weights as DTensors that are made "
                "outside of them, which torch.compile cannot trace"
            )
        return None

    def clash(self, job: TrainingJob, others: Sequence[Parallelism]) -> str | None:
        for other in others:
            if isinstance(other, Pipeline) and other.splits_backward:
                return f"compile and {other.schedule}: it splits backward, which compiled layers have in one piece"
        return None

    def without_data(self) -> tuple[Self, str]:
        words = "this step is not compiled: a compiled layer may keep less for backward and launch fewer operators"
        return (replace(self, compile=False), words) if self.compile else (self, "")

    def hides_activations(self, job: TrainingJob) -> str:
        return "torch.compile decides what a layer keeps"

    def apply(self, assembly: Assembly) -> None:
        for layer in assembly.layers():
            layer.compile()
