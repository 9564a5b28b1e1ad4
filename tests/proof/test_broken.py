"""A step that is broken on purpose is found out, on every rank and with the place where it shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.training.jobs import make_job, parity_of

pytestmark = pytest.mark.gloo

MOE = {"shape": "moe-tiny"}


def without_all_reduce(layout: str) -> Any:
    """Each rank takes its part of attention and feed-forward for the sum over all."""
    from torch import nn
    from torch.distributed.tensor.parallel import RowwiseParallel

    honest = RowwiseParallel._prepare_output_fn

    def forgetful(layouts: Any, local: bool, module: Any, outputs: Any, mesh: Any) -> Any:
        return outputs.to_local() if isinstance(module, nn.Linear) else honest(layouts, local, module, outputs, mesh)

    RowwiseParallel._prepare_output_fn = staticmethod(forgetful)  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_norm_gradients_unreduced(layout: str) -> Any:
    from clusterbench.training.step import TrainingStep

    TrainingStep.reduce = lambda self: None  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_gradients_summed(layout: str) -> Any:
    """DDP with a hook that forgets to divide, as hooks of one's own do."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    honest = DistributedDataParallel.__init__

    def summing(self: Any, *arguments: Any, **options: Any) -> None:
        honest(self, *arguments, **options)

        def send(group: Any, buffer: torch.Tensor) -> Any:
            work = dist.all_reduce(buffer, group=group, async_op=True)
            assert work is not None
            return work.get_future().then(lambda future: future.value()[0])

        # without annotations: DDP compares them with classes, and here they are text
        self.register_comm_hook(options["process_group"], lambda group, bucket: send(group, bucket.buffer()))

    DistributedDataParallel.__init__ = summing  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_a_micro_batch_skipped(layout: str) -> Any:
    from clusterbench.training import step

    honest = step.micro_batches

    def all_but_the_first(job: Any, dp_rank: int, positions: Any) -> Any:
        shares = honest(job, dp_rank, positions)
        return shares[1:] if len(shares) > 1 else shares  # one rank alone has a single, whole batch

    step.micro_batches = all_but_the_first
    return parity_of(layout, {}, {"global_batch_size": 2})  # the case itself has one micro-batch per rank


def with_wrong_positions(layout: str) -> Any:
    """Positions run backwards. A mere offset would be no mistake: rotary positions are relative."""
    import torch

    from clusterbench.model.decoder import rope_tables
    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.__init__

    def backwards(self: Any, job: Any, *arguments: Any) -> None:
        honest(self, job, *arguments)
        if job.layout.world_size > 1:
            self.assembly.decoders[0].rope = rope_tables(job.shape, torch.arange(job.seq_len).flip(0), torch.float64)

    TrainingStep.__init__ = backwards  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_gradients_summed_at_the_end(layout: str) -> Any:
    """As above, where a pipeline leaves the averaging to the end of the step."""
    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.__init__

    def summing(self: Any, *arguments: Any) -> None:
        honest(self, *arguments)
        for weight in self.weights:
            weight.scale = 1.0

    TrainingStep.__init__ = summing  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_experts_not_averaged(layout: str) -> Any:
    """An expert gets the tokens of all ranks, so its gradient is a sum already, and seems to need nothing more."""
    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.__init__

    def unscaled(self: Any, *arguments: Any) -> None:
        honest(self, *arguments)
        for weight in self.weights:
            if ".experts." in weight.name:
                weight.scale = 1.0

    TrainingStep.__init__ = unscaled  # type: ignore[method-assign]
    return parity_of(layout, {}, MOE)


def with_experts_averaged_over_their_copies(layout: str) -> Any:
    """FSDP left to itself divides by the ranks it shards over, here edp, and not by those that share the batch."""
    from torch.distributed.fsdp import FSDPModule

    FSDPModule.set_gradient_divide_factor = lambda self, factor: None  # type: ignore[method-assign]
    FSDPModule.set_force_sum_reduction_for_comms = lambda self, on: None  # type: ignore[method-assign]
    return parity_of(layout, {}, MOE)


def with_a_hop_skipped(layout: str, kind: str) -> Any:
    """Once round the ring, keys and values stay where they are."""
    from clusterbench.model import context_attention

    honest = context_attention._Hop.arrived
    hops: list[None] = []

    def arrived(hop: Any) -> Any:
        hops.append(None)
        arriving = honest(hop)
        return hop._leaving if len(hops) == 1 else arriving

    context_attention._Hop.arrived = arrived  # type: ignore[method-assign]
    return parity_of(layout, {"context": kind}, {})


def with_a_hop_of_the_ring_skipped(layout: str) -> Any:
    return with_a_hop_skipped(layout, "ring")


def with_a_hop_of_the_zigzag_skipped(layout: str) -> Any:
    return with_a_hop_skipped(layout, "zigzag")


def with_zigzag_positions_on_contiguous_tokens(layout: str) -> Any:
    """The data loader cuts sequences in equal parts, the model believes in zig-zag; every token is there once."""
    import torch
    import torch.distributed as dist

    from clusterbench.training import step

    honest = step.micro_batches

    def contiguous(job: Any, dp_rank: int, positions: Any) -> Any:
        return honest(job, dp_rank, torch.arange(job.seq_len).chunk(job.layout.cp)[dist.get_rank() % job.layout.cp])

    step.micro_batches = contiguous
    return parity_of(layout, {"context": "zigzag"}, {})


def with_the_last_micro_batch_again(layout: str) -> Any:
    """A stage computes on the buffer that the last micro-batch came in; gradients go back as they should."""
    from clusterbench.model.decoder import Decoder

    honest = Decoder.forward
    last: dict[Any, Any] = {}

    def forward(self: Any, x: Any) -> Any:
        if self.chunk.first:
            return honest(self, x)
        before = last.get(self, x.detach())
        last[self] = x.detach().clone()
        return honest(self, x + (before - x.detach()))

    Decoder.forward = forward  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_a_tied_embedding_not_summed_over_the_ends(layout: str) -> Any:
    from clusterbench.training import step

    step.SUM_ORDER = tuple(axis for axis in step.SUM_ORDER if axis != "ends")  # type: ignore[attr-defined]
    return parity_of(layout, {}, {"shape": "llama-tiny-tied"})


def with_a_share_not_broadcast(layout: str) -> Any:
    """ZeRO 1: what rank 1 has updated stays on rank 1."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    honest: Any = ZeroRedundancyOptimizer._broadcast_params_from_rank
    ZeroRedundancyOptimizer._broadcast_params_from_rank = (  # type: ignore[method-assign]
        lambda self, rank: [] if rank == 1 else honest(self, rank)
    )
    return parity_of(layout, {}, {})


def with_a_shard_not_updated(layout: str) -> Any:
    """ZeRO 2 and 3: rank 1 leaves its shard as it is."""
    import torch.distributed as dist

    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.update

    def forgetful(self: Any) -> None:
        if self.job.layout.world_size == 1 or dist.get_rank() != 1:
            honest(self)

    TrainingStep.update = forgetful  # type: ignore[method-assign]
    return parity_of(layout, {}, {})


def with_gradients_clipped_unasked(layout: str) -> Any:
    """On one rank too, so that both have the same norm: that of clipped gradients."""
    import torch

    from clusterbench.training.step import TrainingStep

    def clipping(self: Any) -> None:
        norm = self.gradient_norm()
        torch._foreach_mul_([weight.gradient for weight in self.weights], min(1.0, 1 / float(norm)))

    TrainingStep.clip = clipping  # type: ignore[method-assign]
    return parity_of(layout, {}, {"max_grad_norm": None})


def with_norms_left_out_of_the_norm(layout: str) -> Any:
    """On one rank too."""
    from clusterbench.training import step

    honest = step.norm_of_all

    def of_matrices(tensors: Any) -> Any:
        return honest([tensor for tensor in tensors if tensor.dim() > 1] or tensors[:1])

    step.norm_of_all = of_matrices  # type: ignore[attr-defined]
    return parity_of(layout, {}, {})


BROKEN: list[tuple[Any, str, str]] = [
    (with_gradients_clipped_unasked, "dp2", "the scale of the gradient of all weights"),
    (with_gradients_clipped_unasked, "dp2+zero3", "the scale of the gradient of all weights"),
    (with_norms_left_out_of_the_norm, "dp2", "the scale of the gradient of all weights"),
    (without_all_reduce, "tp2", "deviates"),
    (with_norm_gradients_unreduced, "tp2+sp", "norm.weight"),
    (with_gradients_summed, "dp2", "gradient"),
    (with_gradients_summed, "dp2-tp2", "gradient"),
    (with_a_micro_batch_skipped, "tp2", "the loss"),
    (with_a_micro_batch_skipped, "dp2", "the loss"),
    (with_wrong_positions, "tp2", "deviates"),
    (with_gradients_summed, "cp2", "gradient"),
    (with_gradients_summed_at_the_end, "pp2-cp2", "gradient"),
    (with_gradients_summed_at_the_end, "pp2-dp2", "gradient"),
    (with_experts_not_averaged, "dp2+ep2", ".experts."),
    (with_experts_not_averaged, "dp4+ep2", ".experts."),
    (with_experts_averaged_over_their_copies, "dp4+ep2+zero2", ".experts."),
    (with_a_hop_of_the_ring_skipped, "cp2", "deviates"),
    (with_a_hop_of_the_zigzag_skipped, "cp2", "deviates"),
    (with_zigzag_positions_on_contiguous_tokens, "cp2", "the loss"),
    (with_the_last_micro_batch_again, "pp2", "the loss"),
    (with_a_tied_embedding_not_summed_over_the_ends, "pp2", "the gradient of embedding.weight"),
    (with_a_share_not_broadcast, "dp2+zero1", "two steps changed"),
    (with_a_share_not_broadcast, "pp2-dp2+zero1", "two steps changed"),
    (with_a_shard_not_updated, "dp2+zero2", "two steps changed"),
    (with_a_shard_not_updated, "dp2+zero3", "two steps changed"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("broken", "layout", "names"), BROKEN, ids=[f"{broken.__name__} {layout}" for broken, layout, _ in BROKEN]
)
def test_a_broken_step_is_wrong_on_every_rank(broken: Any, layout: str, names: str) -> None:
    sentences = run_ranks(make_job(layout).layout.world_size, broken, layout)
    assert len(set(sentences)) == 1
    assert sentences[0].startswith(f"{layout} does not compute what one rank computes: ")
    assert names in sentences[0], sentences[0]
    assert " in float64; allowed is 1e-" in sentences[0]


def summed(layout: str) -> dict[str, float]:
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.parity import check_parity
    from clusterbench.trainers import trainers
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_rig

    honest = TrainingStep.forward_backward

    def doubling(self: Any) -> Any:
        loss = honest(self)
        for weight in self.weights if self.job.layout.world_size > 1 else ():
            weight.gradient.mul_(2)
        return loss

    TrainingStep.forward_backward = doubling  # type: ignore[method-assign]
    job = make_job(layout)
    rig = make_rig(job.layout)
    with pytest.raises(WrongResult) as caught:
        check_parity(trainers()["ours"](), job, from_options({}), rig.grid, rig.device)
    return caught.value.evidence


def test_the_evidence_of_a_wrong_step_says_how_wrong() -> None:
    evidence = run_ranks(2, summed, "dp2")[0]
    assert evidence["parity_gradients"] == pytest.approx(1.0)
    assert evidence["parity_loss"] < 1e-13
