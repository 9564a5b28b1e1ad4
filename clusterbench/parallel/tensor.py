"""Tensor parallelism: every weight matrix cut over the ranks of tp, as in Megatron."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism, Traffic

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from clusterbench.model.assembly import Assembly

# Dimension of each weight that is cut: 0 gives each rank some outputs, 1 some inputs, whose products are then summed.
SPLIT_DIM = {
    "embedding": 0,
    "attention.query": 0,
    "attention.key": 0,
    "attention.value": 0,
    "attention.output": 1,
    "feed_forward.gate": 0,
    "feed_forward.up": 0,
    "feed_forward.down": 1,
    "head": 0,
}
SPLIT_ACTIVATIONS = (
    "layer.attention.query",
    "layer.attention.key",
    "layer.attention.value",
    "layer.attention.output",
    "layer.attention.logsumexp",
    "layer.feed_forward.gate",
    "layer.feed_forward.silu",
    "layer.feed_forward.up",
    "layer.feed_forward.product",
)


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Parallelism):
    """Cuts heads, feed-forward and vocabulary over the ranks of tp (torch's ColwiseParallel and RowwiseParallel).

    Notes
    -----
    With fewer kv heads than ranks, keys and values are kept whole on every rank, which computes the head it needs;
    their gradients are parts then.

    These are torch's own styles, with what DTensor costs: a few dozen microseconds of Python for each operator and
    placement, which a GPU hides behind its kernels and a CPU with a small model does not. There a step takes about as
    long as any with ``parallelize_module``, and longer than one on local tensors: see tests/bench/tp2_by_hand.py.

    Source
    ------
    Shoeybi et al. 2019, arXiv:1909.08053.
    """

    phase: ClassVar[str] = "tensor"

    loss_parallel: bool = option(
        True, "compute the loss on logits split over the vocabulary, in place of gathering them (tp)"
    )

    def active(self, layout: ParallelLayout) -> bool:
        return layout.uses("tp")

    def objection(self, job: TrainingJob) -> str | None:
        tp, shape = job.layout.tp, job.shape
        for what, number in (
            ("attention heads", shape.num_heads),
            ("feed-forward channels", 0 if shape.has_experts else shape.ffn_hidden_size),
            ("rows of the vocabulary", shape.vocab_size),
        ):
            if number % tp:
                share = f"{number} / {tp} = {number / tp:.4g}"
                return f"tp{tp} does not divide the {number} {what} of {shape.name}: {share}"
        larger, smaller = max(shape.num_kv_heads, tp), min(shape.num_kv_heads, tp)
        if larger % smaller:
            return (
                f"tp{tp} and the {shape.num_kv_heads} kv heads of {shape.name} do not divide one another: "
                f"{larger} / {smaller} = {larger / smaller:.4g}"
            )
        return None

    def weight(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        dim = self._split_dim(name, job)
        return size if dim is None else (*size[:dim], size[dim] // job.layout.tp, *size[dim + 1 :])

    def splits(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return () if self._split_dim(name, job) is None else ("tp",)

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return ("tp",) if _replicates_kv(job) and _is_kv(name) else ()

    def _split_dim(self, name: str, job: TrainingJob) -> int | None:
        if self.sums(name, job):
            return None
        return next((dim for module, dim in SPLIT_DIM.items() if name.endswith(f"{module}.weight")), None)

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        if self.loss_parallel and job.has_head:
            # the logits minus their maximum, which live while their exponentials are summed over tp
            held = held | {"loss.shifted": held["loss.log_softmax"]}
        return {name: size_bytes / self._ranks_sharing(name, job) for name, size_bytes in held.items()}

    def _ranks_sharing(self, name: str, job: TrainingJob) -> int:
        if name.startswith("loss."):
            return job.layout.tp if self.loss_parallel else 1
        if name in ("layer.attention.key", "layer.attention.value") or _is_kv(name):
            # also the rounded weights: of those kept whole, a rank rounds the head it uses
            return min(job.layout.tp, job.shape.num_kv_heads)
        if name.startswith("rounded."):
            return 1 if self._split_dim(name, job) is None else job.layout.tp
        return job.layout.tp if name in SPLIT_ACTIVATIONS else 1

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        forwards, tokens = job.gradient_accumulation_steps * job.has_head, job.local_tokens
        if not job.layout.sp:  # with it, the same places are crossed by other collectives: see sequence.py
            calls = job.gradient_accumulation_steps * crossings(job)
            yield Traffic("tp", "all_reduce", calls, calls * crossing_bytes(job))
        if self.loss_parallel:
            # the softmax over split logits: the maximum, the sum of exponentials, and the logit of the label, which one
            # rank has; all in forward, in float32 at least
            calls = forwards * 3
            yield Traffic("tp", "all_reduce", calls, calls * tokens * max(4, job.compute_bytes))
        else:
            # the head gathers its logits; in backward each rank cuts its part out of the gradient
            yield Traffic("tp", "all_gather", forwards, forwards * tokens * job.shape.vocab_size * job.compute_bytes)

    def forward_traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        if not job.layout.sp:
            # Recomputing a layer repeats its collectives but the last: nothing after `down` is needed for backward.
            calls = job.gradient_accumulation_steps * len(job.layers)
            yield Traffic("tp", "all_reduce", calls, calls * crossing_bytes(job))  # out of attention

    def apply(self, assembly: Assembly) -> None:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            PrepareModuleInputOutput,
            RowwiseParallel,
            loss_parallel,
        )

        job = assembly.job
        # How the residual stream lies between the regions: whole on every rank, or cut along the sequence.
        outside = Shard(1) if job.layout.sp else Replicate()
        logits = Shard(-1) if self.loss_parallel else Replicate()
        kv = _key_value_style(job) if _replicates_kv(job) else ColwiseParallel()
        # The input is made a DTensor once per region, not once per projection: its gradient is then summed over q, k, v
        # (or gate and up) before it is reduced, in one collective where torch's bare styles would issue one for each.
        plan: dict[str, ParallelStyle] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
            "layers.*.attention": PrepareModuleInput(
                input_layouts=(outside, None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            "layers.*.attention.query": ColwiseParallel(),
            "layers.*.attention.key": kv,
            "layers.*.attention.value": kv,
            "layers.*.attention.output": RowwiseParallel(output_layouts=outside),
        }
        if not job.shape.has_experts:
            plan |= {
                "layers.*.feed_forward": PrepareModuleInput(
                    input_layouts=(outside,), desired_input_layouts=(Replicate(),)
                ),
                "layers.*.feed_forward.gate": ColwiseParallel(),
                "layers.*.feed_forward.up": ColwiseParallel(),
                "layers.*.feed_forward.down": RowwiseParallel(output_layouts=outside),
            }
        if job.shape.tied_embeddings:
            # The weight is the embedding's, cut already; only the activations are to be arranged.
            plan["head"] = PrepareModuleInputOutput(
                input_layouts=(outside,),
                desired_input_layouts=(Replicate(),),
                output_layouts=(Shard(-1),),
                desired_output_layouts=(logits,),
                use_local_output=not self.loss_parallel,
            )
        else:
            plan["head"] = ColwiseParallel(
                input_layouts=outside, output_layouts=logits, use_local_output=not self.loss_parallel
            )
        assembly.parallelize("tp", plan)
        if self.loss_parallel:
            assembly.contexts.append(loss_parallel)


def crossings(job: TrainingJob) -> int:
    """How often a forward enters a region of split weights, and how often it leaves one, together.

    Entered are attention, feed-forward and the head; left are the embedding, attention and feed-forward. Experts are no
    such region: each is whole on one rank.
    """
    regions = 1 if job.shape.has_experts else 2
    return 2 * regions * len(job.layers) + job.embeds + job.has_head


def crossing_bytes(job: TrainingJob) -> int:
    """The residual stream of one micro-batch: what each crossing sends.

    Without sequence parallelism, leaving sums the parts (one all_reduce in forward) and entering sums their gradients
    (one all_reduce in backward).
    """
    return job.local_tokens * job.shape.hidden_size * job.compute_bytes


def _replicates_kv(job: TrainingJob) -> bool:
    return job.shape.num_kv_heads < job.layout.tp


def _is_kv(name: str) -> bool:
    return name.endswith(("attention.key.weight", "attention.value.weight"))


def _key_value_style(job: TrainingJob) -> ParallelStyle:
    """A projection kept whole on every rank, of which each computes only the kv head its query heads need."""
    import torch.nn.functional as F
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_module
    from torch.distributed.tensor.parallel import ParallelStyle

    class ReplicatedKeyValue(ParallelStyle):
        def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
            head = device_mesh.get_local_rank() * job.shape.num_kv_heads // job.layout.tp
            rows = slice(head * job.shape.head_dim, (head + 1) * job.shape.head_dim)
            # Nothing else than this head reaches the loss on this rank, so both gradients are parts of the sum over tp.
            part = [Partial()]

            def forward(x: DTensor) -> Tensor:
                weight: DTensor = module.weight  # type: ignore[assignment]
                local = x.to_local(grad_placements=part)
                return F.linear(local, weight.to_local(grad_placements=part)[rows].to(local.dtype))

            def replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
                whole: Tensor = module.weight  # type: ignore[assignment]
                module.weight = nn.Parameter(DTensor.from_local(whole, mesh, [Replicate()], run_check=False))

            module.forward = forward
            return distribute_module(module, device_mesh, replicate)

    return ReplicatedKeyValue()
