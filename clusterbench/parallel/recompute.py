"""Recomputation: activations are dropped in forward and computed again in backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.shape import ModelShape

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly

KEPT_BY_SELECTIVE = (
    "layer.attention.query",
    "layer.attention.key",
    "layer.attention.value",
    "layer.attention.output",
    "layer.attention.logsumexp",
    "layer.feed_forward.gate",
    "layer.feed_forward.up",
    "layer.experts.gate",
    "layer.experts.up",
    "layer.experts.output",
    "layer.shared.gate",
    "layer.shared.up",
)


@dataclass(frozen=True, kw_only=True)
class Recompute(Parallelism):
    """Trades arithmetic for memory, layer by layer (torch.utils.checkpoint). No axis of its own.

    ``full`` keeps the input of each layer. ``selective`` works on operators, as torchtitan's does: it keeps the results
    of matrix products, attention and collectives, and repeats the cheap operators between them (norms, rotations,
    SwiGLU), so it executes no FLOP that MFU or HFU count. It is not Megatron's ``selective``, which repeats the core of
    attention to be rid of its scores: flash attention never stores them.

    Source
    ------
    Chen et al. 2016, arXiv:1604.06174 (full). pytorch/torchtitan, ``torchtitan/distributed/activation_checkpoint.py``
    (selective by operator). Korthikanti et al. 2022, arXiv:2205.05198, section 5, for Megatron's.
    """

    phase: ClassVar[str] = "recompute"

    recompute: str = option(
        "none",
        "what backward computes again: full keeps the inputs of layers only; selective is operator-level: keeps the "
        "results of matrix products and attention, repeats the cheap operations between them",
        choices=("none", "selective", "full"),
        label="{} recompute",
        alters="nothing",
    )

    def active(self, layout: ParallelLayout) -> bool:
        return self.recompute != "none"

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return True

    def clash(self, job: TrainingJob, others: Sequence[Parallelism]) -> str | None:
        for other in others:
            if isinstance(other, Pipeline) and other.splits_backward:
                # torch takes the gradients of weights group by group, each of which would bring the layer to life again
                return (
                    f"{other.schedule} computes the gradients of weights apart from those of inputs, and recompute "
                    f"{self.recompute} would compute a layer again for each; 1f1b and interleaved_1f1b go through it "
                    "once"
                )
        return None

    def hides_activations(self, job: TrainingJob) -> bool:
        # In a pipeline the layer that comes to life again is that of one micro-batch, not of each in flight. Measured
        # is up to 1.9 times the sum of what is kept.
        return job.layout.uses("pp") and self.recompute != "none"

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        residual = float(job.local_tokens * job.shape.hidden_size * job.compute_bytes)
        inputs = {"layer.inputs": residual / job.layout.sequence_parts * len(job.layers)}
        inside = {name: size for name, size in held.items() if name.startswith(("layer.", "rounded.layers."))}
        outside = {name: size for name, size in held.items() if name not in inside}
        if self.recompute == "selective":
            kept = {name: size for name, size in inside.items() if name in KEPT_BY_SELECTIVE}
            products = {"layer.products": residual * len(job.layers)}  # of output, before sums
            if not job.shape.has_experts:
                products["layer.products"] *= 2  # of down, too
            else:  # the router's before softmax, in the dtype of the arithmetic
                logits = held["layer.router.probabilities"] * job.compute_bytes / max(4, job.compute_bytes)
                products |= {"layer.router.logits": logits}
                if job.shape.num_shared_experts:
                    products |= {"layer.shared.products": inputs["layer.inputs"]}
            return inputs | kept | products | outside
        # In backward one layer at a time comes to life again. By then the loss has let go of its logits, and norm and
        # head of what they held; the layer's input is the input its norm keeps, unless that is a copy in float32.
        one_layer = {name: size / len(job.layers) for name, size in inside.items()}
        if job.device == "cuda" or job.compute_bytes >= 4:
            one_layer["layer.inputs"] = inputs["layer.inputs"] * (1 - 1 / len(job.layers))
        at_loss, in_backward = inputs | outside, inputs | one_layer
        return max(at_loss, in_backward, key=lambda moment: sum(moment.values()))

    @property
    def repeats(self) -> str:
        return self.recompute

    def apply(self, assembly: Assembly) -> None:
        from functools import partial

        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

        context_fn = noop_context_fn
        if self.recompute == "selective":
            context_fn = partial(create_selective_checkpoint_contexts, _keep_what_costs)
        for layer in assembly.layers():
            # preserve_rng_state: nothing here is random
            layer.forward = partial(  # type: ignore[method-assign]
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False, context_fn=context_fn
            )


def _keep_what_costs(context: Any, operator: Any, *arguments: Any, **options: Any) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy

    name = operator.name()
    costs = name.startswith(
        ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product", "_c10d_functional::", "aten::_grouped_mm")
    )
    return CheckpointPolicy.MUST_SAVE if costs else CheckpointPolicy.PREFER_RECOMPUTE
