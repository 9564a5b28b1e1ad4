"""Recomputation: activations are dropped in forward and computed again in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import RESULT, SENT, Parallelism
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.parallel.sequence import GATHERED
from clusterbench.shape import ModelShape

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly
    from clusterbench.model.decoder import Layer

KEPT_BY_SELECTIVE = frozenset(
    (
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
)

ROWS = f"layer.{RESULT}{SENT}rows"
"""Rows as they came to their experts, and as they came back."""

EXCHANGED = "layer.attention.output_of_heads"
"""Is among the activations where attention has other heads and tokens than what is around it: with Ulysses."""


KINDS = ("none", "selective", "full")
"""From least to most computed again."""


@dataclass(frozen=True, kw_only=True)
class Recompute(Parallelism):
    """Trades arithmetic for memory, layer by layer (torch.utils.checkpoint). No axis of its own.

    ``full`` keeps the input of each layer. ``selective`` works on operators, as torchtitan's does: it keeps the results
    of matrix products, attention and collectives, and repeats the cheap operators between them (norms, rotations,
    SwiGLU), so it executes no FLOP that MFU or HFU count. It is not Megatron's ``selective``, which repeats the core of
    attention to be rid of its scores: flash attention never stores them.

    Of these results it lets go of what nothing in backward reads (clusterbench/model/kept_results.py): the last product
    of a layer, which leaves with the residual stream, and where tp cuts products those that are summed over the ranks,
    of which the sums are kept.

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
        choices=KINDS,
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

    def hides_activations(self, job: TrainingJob) -> str:
        # Measured is 7 to 12 % more than what grouped products would keep.
        if self.recompute == "selective" and job.shape.has_experts and job.dtype == "float64":
            return (
                "torch has no grouped product in float64: selective recomputation keeps the result of each expert's, "
                "and what joins them is computed again"
            )
        return ""

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        return self.moments(held, job)[0]

    def moments(
        self, held: dict[str, float], job: TrainingJob, expert_parts: int = 1
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What is kept from forward to backward, and what lives when the last layer has been computed again.

        By then the loss has let go of its logits, and norm and head of what they held.
        """
        inside = {name: size for name, size in held.items() if name.startswith("layer.")}
        outside = {name: size for name, size in held.items() if name not in inside}
        residual = job.residual_tokens * job.shape.hidden_size * job.compute_bytes
        kept = {"layer.inputs": float(residual * job.num_layers)}
        if self.recompute == "selective":
            kept |= self._results(held, job)
        again = {name: size / job.num_layers for name, size in inside.items() if name not in kept}
        for name in self._received(job):
            size_bytes = again.pop(name)
            if self.recompute == "full":  # selective has kept it as it came
                again[f"{SENT}{name}"] = size_bytes
        if not self._norms_copy(job):  # the layer's input is the input its norm keeps
            again["layer.attention_norm.input"] -= residual
        last = kept | again | self._passing(job, expert_parts)
        if self.recompute == "selective":
            # what attention has given to the residual stream is used up, and its blocks are joined
            given = ("layer.products", f"layer.{RESULT}{SENT}sums")
            used_up = [name for name in last if name in given or (RESULT in name and SENT not in name)]
            last |= {name: last[name] - last[name] / job.num_layers for name in used_up}
            rows = residual * job.shape.experts_per_token
            if ROWS in last and _has_one_expert(job):  # those that its expert made are gone: they were sent
                last["again.experts"] -= rows / expert_parts
                last[f"again.{SENT}rows"] = rows / expert_parts  # as they came back, until the layer's backward begins
                last[ROWS] -= rows / expert_parts
            elif ROWS in last:  # as they came there they are put in order
                last[ROWS] -= rows / expert_parts
        elif job.layout.spreads_experts and not _has_one_expert(job):  # as they came there, and as they came back
            last[f"again.{SENT}rows"] = 2 * residual * job.shape.experts_per_token
        if EXCHANGED in held:
            last.update(self._exchanged(held, kept, job))
        return kept | outside, last

    def _results(self, held: Mapping[str, float], job: TrainingJob) -> dict[str, float]:
        """What selective recomputation keeps: the results of products, attention and collectives."""
        kept = {name: size for name, size in held.items() if name in KEPT_BY_SELECTIVE}
        kept |= {f"layer.{name}": size for name, size in held.items() if name.startswith(RESULT)}
        if job.layout.spreads_experts and _has_one_expert(job):  # sent back as they are made, and kept as they came
            del kept["layer.experts.output"]
        if EXCHANGED in held:  # as they were projected: each rank gets a head, if there are fewer
            heads = max(1, job.shape.num_kv_heads // job.layout.tp) * job.num_layers
            projected = float(job.local_tokens * heads * job.shape.head_dim * job.compute_bytes)
            kept |= {"layer.attention.key": projected, "layer.attention.value": projected}
        products: dict[str, float] = {}
        if not job.layout.uses("tp"):  # of attention's last, which tp keeps summed over the ranks
            residual = job.local_tokens * job.shape.hidden_size * job.compute_bytes
            products["layer.products"] = float(residual * job.num_layers)
        if job.shape.has_experts:  # the router's before softmax, in the dtype of the arithmetic
            logits = held["layer.router.probabilities"] * job.compute_bytes / max(4, job.compute_bytes)
            products["layer.router.logits"] = logits
        return kept | products

    def _received(self, job: TrainingJob) -> Iterable[str]:
        """Activations that are a message as it came, which no operator changes.

        What autograd saves of a forward is an activation, whatever it came from; what is computed again is not saved
        where anybody sees it.
        """
        if job.layout.sp:
            yield from GATHERED[: 1 if job.shape.has_experts else 2]
        if _has_one_expert(job):
            yield "layer.experts.input"

    def _exchanged(
        self, held: Mapping[str, float], kept: Mapping[str, float], job: TrainingJob
    ) -> Iterator[tuple[str, float]]:
        """What Ulysses' attention reads in the last layer, in place of what was kept; of one sequence a message."""
        for name in ("layer.attention.query", "layer.attention.key", "layer.attention.value"):
            of_others, arrived = kept.get(name, 0.0) * (1 - 1 / job.num_layers), held[name] / job.num_layers
            yield name, of_others + arrived * (job.micro_batch_size > 1)
            if job.micro_batch_size == 1 and self.recompute == "full":
                yield f"{SENT}{name}", arrived

    def _norms_copy(self, job: TrainingJob) -> bool:
        """Whether a norm keeps its input in another precision than it came in."""
        return job.device != "cuda" and job.compute_bytes < 4

    def _passing(self, job: TrainingJob, expert_parts: int) -> dict[str, float]:
        """What else lives while the last part of a layer is computed again.

        What the residual stream is before it, where the norm keeps a copy of that. With experts, of which all is
        needed, to the last sum: their rows times their weights, before they are summed, of the last part beside the
        sums of those before it; and the result of shared ones. With sp a norm's part of the sequence.
        """
        residual = float(job.residual_tokens * job.shape.hidden_size * job.compute_bytes)
        passing = {"again.stream": residual} if self._norms_copy(job) else {}
        if job.shape.has_experts:
            sums = (expert_parts - 1) / expert_parts
            streams = job.shape.experts_per_token / expert_parts + sums + bool(job.shape.num_shared_experts)
            passing["again.experts"] = residual * streams
        elif job.layout.sp:  # what the norm gave, which is kept as it was gathered
            passing["again.normed"] = residual
        return passing

    @property
    def repeats(self) -> str:
        return self.recompute

    def apply(self, assembly: Assembly) -> None:
        self.checkpoint([*assembly.layers()])

    def checkpoint(self, layers: Sequence[Layer]) -> None:
        """Lets each compute its forward again in backward."""
        options: dict[str, Any] = {}
        if self.recompute == "selective":
            from clusterbench.model.kept_results import selective_contexts

            options["context_fn"] = selective_contexts
        for layer in layers:
            layer.forward = _checkpointed(layer.forward, options)  # type: ignore[method-assign]


def _has_one_expert(job: TrainingJob) -> bool:
    """Whether each rank of ep has a single expert, whose rows keep their order."""
    return job.layout.ep == job.shape.num_experts > 1


def _checkpointed(forward: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """A function of its own: of a layer whose forward is torch's checkpoint itself torch.compile compiles nothing."""
    from torch.utils.checkpoint import checkpoint

    def checkpointed(*arguments: Any) -> Any:
        # preserve_rng_state: nothing here is random
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **options)

    return checkpointed
