"""The loss in chunks: the logits of all tokens are never there at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from clusterbench.job import TrainingJob, kept_bytes
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism
from clusterbench.shape import ModelShape
from clusterbench.units import quotient

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly


@dataclass(frozen=True, kw_only=True)
class ChunkedLoss(Parallelism):
    """Takes head and loss over some of a micro-batch's tokens at a time, forward and backward in one.

    Logits, and what the loss makes of them, take 10 to 16 bytes for each token and entry of the vocabulary; chunks
    need that for their own tokens only, and the gradient of the head in float32 instead. No product is computed twice.

    Source
    ------
    Hsu et al. 2024, arXiv:2410.10989 (Liger Kernel), whose operator is one fused kernel.
    """

    phase: ClassVar[str] = "replicate"  # of the logits that are left when all others have taken their share

    loss_chunks: int = option(
        1,
        "parts of a micro-batch's tokens that go through head and loss one after the other",
        minimum=1,
        maximum=2**16,
        label="loss in {} chunks",
        alters="nothing",
        is_later=True,
    )

    def active(self, layout: ParallelLayout) -> bool:
        return self.loss_chunks > 1

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return True

    def objection(self, job: TrainingJob) -> str | None:
        layout, tokens = job.layout, job.local_tokens
        if layout.uses("tp"):
            return (
                f"loss_chunks and tp{layout.tp}: the logits are cut over tp already, and so is the loss (loss_parallel)"
            )
        if layout.uses("pp"):
            return f"loss_chunks and pp{layout.pp}: a schedule takes the loss from logits that the last stage hands it"
        if tokens % self.loss_chunks:
            return (
                f"loss_chunks {self.loss_chunks} does not divide the {tokens} tokens of a micro-batch on a rank: "
                f"{tokens} / {self.loss_chunks} = {quotient(tokens, self.loss_chunks)}"
            )
        return None

    def for_proof(self) -> Self:
        return replace(self, loss_chunks=min(self.loss_chunks, 4))  # a twin has few tokens

    @property
    def fuses_loss(self) -> bool:
        return self.active(ParallelLayout())

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        size = job.shape.vocab_size * job.shape.hidden_size
        gradient = {"loss.head_gradient": float(size * max(4, job.compute_bytes))}
        if (
            "loss.logits" not in held
        ):  # behind the loss; a table that is the head's, too, waits for the look-up's gradient
            return held | gradient if job.has_head and job.shape.tied_embeddings else held
        logits, wide = (held[name] / self.loss_chunks for name in ("loss.logits", "loss.log_softmax"))
        # logits beside themselves in float32, or their gradient beside itself rounded; then that beside one chunk's
        # part of the weight's
        beside = logits + wide if job.compute_bytes < 4 else wide
        parts = max(beside, logits + size * job.compute_bytes)
        rest = {name: size for name, size in held.items() if not name.startswith("loss.")}
        return rest | gradient | {"loss.parts": parts, "loss.input_gradient": held["head.input"]}

    def kept_as_gradients(self, job: TrainingJob, behind_loss: bool) -> Sequence[str]:
        """The head's gradient: where it is cast, added to another, or copied into a bucket of DDP's, that is kept.

        What it is cast to is there once backward has begun, and waits for the look-up's gradient where that is added.
        """
        is_sharded, only = job.layout.shards_gradients, job.gradient_accumulation_steps == 1
        as_made = max(4, job.compute_bytes) == (job.compute_bytes if is_sharded else kept_bytes("head.weight", job))
        is_moved = not is_sharded and (job.layout.degree("dp_cp") > 1 or not only)
        is_kept = as_made and not is_moved and not job.shape.tied_embeddings
        return ("loss.head_gradient",) if is_kept or (behind_loss and not as_made) else ()

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.model.chunked_loss import put_loss_into_head

        (decoder,) = assembly.decoders
        assert decoder.head is not None
        put_loss_into_head(decoder, self.loss_chunks)
        assembly.loss = decoder.head
