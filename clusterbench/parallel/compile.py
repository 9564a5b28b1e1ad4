"""Compilation: each layer becomes a few fused kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar, Self

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Joined, Parallelism
from clusterbench.parallel.context import ContextParallel
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.parallel.recompute import Recompute
from clusterbench.shape import ModelShape

if TYPE_CHECKING:
    from torch import nn

    from clusterbench.model.assembly import Assembly
    from clusterbench.model.decoder import Layer


@dataclass(frozen=True, kw_only=True)
class Compile(Parallelism):
    """Compiles the layers, one by one, as torchtitan does (torch.compile with its own compiler).

    Layers are alike, so the first one's code serves all. Routed experts and ring attention are not compiled, and what
    is beside them in a layer is: how many rows an expert gets is for the host to read, and keys and values go around as
    messages. Embedding, last norm, head and loss are not, either. Under tp a compiled layer makes its DTensors itself,
    of plain parameters and activations: the compiler takes them apart, and what is left are products of local tensors
    and collectives, without DTensor's dispatch.

    On a CPU a C++ compiler is needed. The first step compiles: give the case a warm-up. A step of which nothing was
    compiled, or a layer was not, is wrong. What a compiled layer keeps for backward is the compiler's choice: no memory
    is predicted. Of what is seen of a case, memory by category and FLOPs are those of the same step with plain layers;
    time, traffic, the trace and the allocator's peak are those of the compiled one.

    With ``async_tp`` the compiler makes one operator of a product and of the gather before it or the sum behind it. It
    sends in pieces, over memory that the ranks of a group share: on GPUs that reach each other, as over NVLink. A step
    in which no product sends is wrong. In a trace what is sent so is no transfer; traffic has it. No GPU has run this
    yet: proof and traffic were tried with torch's own fallbacks, which gather, then multiply (tests/parallel).

    Source
    ------
    Ansel et al. 2024, doi:10.1145/3620665.3640366. pytorch/torchtitan, ``apply_compile`` and
    ``maybe_enable_async_tp``.
    """

    phase: ClassVar[str] = "compile"

    compile: bool = option(False, "compile each layer with torch.compile", label="torch.compile", alters="nothing")
    async_tp: bool = option(
        False,
        "with compile and +sp send what tp sends in pieces, each while the next piece of a product is computed",
        label="async tp",
        alters="nothing",
        is_later=True,
    )

    def active(self, layout: ParallelLayout) -> bool:
        return self.compile or self.async_tp

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return True

    @property
    def reaches_memory(self) -> bool:
        return self.async_tp

    def objection(self, job: TrainingJob) -> str | None:
        if not self.async_tp:
            return None
        if not self.compile:
            return "async_tp is the compiler's work: it needs compile: true"
        if not job.layout.sp:
            return f"async_tp sends within products what +sp gathers and sums, and {job.layout} has no +sp"
        if job.device == "cpu":
            return "async_tp needs GPUs that reach each other's memory: torch has no such operators for a CPU"
        return None

    def clash(self, job: TrainingJob, others: Sequence[Parallelism]) -> str | None:
        if self.async_tp and any(other.product_rounding for other in others):
            return "async_tp and float8: what is gathered would be rounded first, of which no formula of traffic speaks"
        parts = _in_parts(job, others)
        for other in others:
            if isinstance(other, Pipeline) and other.splits_backward:
                return f"compile and {other.schedule}: it splits backward, which compiled layers have in one piece"
            if parts and isinstance(other, Recompute) and other.recompute == "selective":
                return (
                    f"compile and recompute selective with {parts}: layers are then compiled in parts, of which single "
                    "results cannot be kept; recompute full can be compiled"
                )
        return None

    def without_data(self) -> tuple[Self, str]:
        words = "this step is not compiled: a compiled layer may keep less for backward and launch fewer operators"
        return (replace(self, compile=False, async_tp=False), words) if self.compile else (self, "")

    def joins_calls(self, job: TrainingJob) -> Iterable[Joined]:
        within_layers = product(("tp", "cp"), ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
        return (Joined(*call) for call in within_layers)

    def hides_activations(self, job: TrainingJob) -> str:
        return "torch.compile decides what a layer keeps"

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.engine.compat import (
            compile_module,
            compiler_cache,
            compiles_float64,
            set_up_compiler,
            share_memory,
            waited,
        )
        from clusterbench.engine.kernel_files import drop_unfinished

        if assembly.job.dtype == "float64" and not compiles_float64():
            return  # so a proof in float64 is of plain layers there; the one in the job's own dtype is of compiled ones
        set_up_compiler()
        drop_unfinished(compiler_cache())
        if self.async_tp:
            share_memory(assembly.grid.group("tp"))
        for decoder in assembly.decoders if assembly.job.layout.uses("tp") else ():
            if decoder.embedding is not None:
                decoder.embedding.register_forward_hook(lambda module, inputs, output: waited(output))
        for layer in assembly.layers():
            for part in compiled_parts(layer):
                compile_module(part, self.async_tp)


def _in_parts(job: TrainingJob, others: Sequence[Parallelism]) -> str:
    """What of a layer is not compiled; empty where it is compiled whole."""
    if job.shape.has_experts:
        return "experts"
    ring = next((other for other in others if isinstance(other, ContextParallel) and other.passes_keys), None)
    return f"context {ring.context}" if ring else ""


def compiled_parts(layer: Layer) -> Iterator[nn.Module]:
    """The modules of a layer that are compiled, each whole: the layer where that can be, else what of it can."""
    from clusterbench.model.experts import MixtureOfExperts

    experts = layer.feed_forward if isinstance(layer.feed_forward, MixtureOfExperts) else None
    if layer.attention.in_one_piece and experts is None:
        yield layer
        return
    yield from (layer.attention_norm, layer.feed_forward_norm)
    if layer.attention.in_one_piece:
        yield layer.attention
    if experts is None:
        yield layer.feed_forward
    elif experts.shared is not None:
        yield experts.shared
