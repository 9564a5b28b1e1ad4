"""Megatron-LM and Megatron-Core, on dense models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import ClassVar

from clusterbench.pricing.profiles import PricedJob, Profile, reach, sharing_words
from clusterbench.pricing.profiles._decoder import (
    BFLOAT16,
    CAUSAL_FORWARD_AND_BACKWARD,
    FLOAT32,
    attention_forward_flops,
    kept_of_a_layer,
    objection_to_decoder,
    parameters,
    weights_of_a_layer,
)
from clusterbench.pricing.work import FORWARD_AND_BACKWARD, Messages, StageWork, StepWork

OPERATORS_OF_A_LAYER = 120
"""That the host launches in forward and backward of a layer: bias, dropout and residual are fused, and so is SwiGLU."""

OF_RESIDUALS, OF_HEADS, OF_FFN = 60, 20, 24
"""Bytes for each token that operators of a layer read and write in forward and backward: by hidden size of norms (20),
of bias, dropout and residual (32) and of the gradients that meet there (8); of rotations and of copies of heads; and
by width of the feed-forward. The first are whole on each rank of tp where the sequence is not shared."""

BUCKET, BUCKET_OF_A_RANK = 40_000_000, 1_000_000
"""Weights whose gradients are reduced at once where that is hidden, and the least of them for each rank."""

RECOMPUTED = {"none": (0.0, 0.0), "selective": (0.0, 1.0), "selective+SP": (0.0, 1.0), "full": (1.0, 1.0)}
"""Forwards of a layer that backward computes again: of its products, and of attention."""


@dataclass(frozen=True)
class MegatronCore(Profile):
    """1F1B with or without interleaving, float32 gradients that are reduced when backward is over."""

    source: ClassVar[str] = (
        "Korthikanti et al. 2022, arXiv:2205.05198 (collectives, what is kept and computed again); "
        "Narayanan et al. 2021, arXiv:2104.04473 (schedules); "
        "NVIDIA/Megatron-LM, megatron/core/distributed (gradients, the distributed optimizer), "
        "NVIDIA/NeMo, docs/source/features/optimizations/communication_overlap.rst (what is hidden); "
        "megatron/core/transformer/transformer_block.py, get_num_layers_to_build (layers over stages), "
        "megatron/core/fusions/fused_bias_swiglu.py (what SwiGLU keeps), "
        "docs/user-guide/features/context_parallel.md; NVIDIA/TransformerEngine, context_parallel.py (the ring)"
    )

    usual_dp_overlap: ClassVar[str] = "gradients and weights hidden where ZeRO is 1, as NVIDIA's recipes have it"

    def objection(self, priced: PricedJob) -> str | None:
        shape, layout = priced.job.shape, priced.job.layout
        if (why := objection_to_decoder(priced, ("dp", "cp", "tp", "pp"))) is not None:
            return why
        if layout.cp > 1 and priced.job.seq_len % (2 * layout.cp):
            return (
                f"each rank of cp {layout.cp} takes two of {2 * layout.cp} chunks, and seq {priced.job.seq_len} has not"
            )
        if layout.zero > 1:
            return f"this profile knows ZeRO 0 and 1, the distributed optimizer, and not {sharing_words(priced)}"
        if priced.recompute not in RECOMPUTED:
            return f"recompute '{priced.recompute}' is not one of {', '.join(RECOMPUTED)}"
        if stages_of(shape.num_layers, layout.pp, priced.chunks) is None:
            return (
                f"{shape.num_layers} layers are no multiple of pp {layout.pp} x {priced.chunks} chunks, "
                "with embedding, loss or both counted as a layer neither"
                if priced.chunks > 1
                else f"{shape.num_layers} layers give {layout.pp} stages not one each"
            )
        if priced.chunks > 1 and priced.num_micro_batches % layout.pp:
            return f"interleaving needs a multiple of pp {layout.pp} micro-batches, not {priced.num_micro_batches}"
        return None

    def work(self, priced: PricedJob) -> StepWork:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        stages = list(self._stages(priced))
        fullest = max(stage.parameters for stage in stages)
        shard = layout.degree(layout.data_axis) if layout.zero else 1
        hides = layout.zero == 1 if priced.dp_overlap is None else priced.dp_overlap
        sent = list(self._gradients(priced, fullest, hides))
        return StepWork(
            head_dim=shape.head_dim,
            num_micro_batches=priced.num_micro_batches,
            stages=stages,
            # scattered over tp before it is sent: Narayanan et al., section 4.1
            boundary_bytes=BFLOAT16 * job.local_tokens * shape.hidden_size / layout.tp,
            pipeline_nodes=priced.num_nodes,
            gradients=sent if hides else [],
            after=[] if hides else sent,
            # behind backward, and behind the forward that needs the weights; of what is sent one layer's is not hidden
            overlap=FORWARD_AND_BACKWARD / (FORWARD_AND_BACKWARD - 1),
            exposed=1 / max(_layers(priced)),
            optimizer_bytes=12 * fullest + 40 * fullest / shard,
            bubble=1 / priced.chunks,
        )

    def _stages(self, priced: PricedJob) -> Iterator[StageWork]:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tokens, tp = job.local_tokens, layout.tp
        products, attention = RECOMPUTED[priced.recompute]
        of_attention = attention_forward_flops(priced) / tp / layout.cp
        wide, table = weights_of_a_layer(shape), shape.embedding_parameters
        elementwise: float = job.residual_tokens * OF_RESIDUALS * shape.hidden_size
        elementwise += tokens * (OF_HEADS * shape.hidden_size + OF_FFN * shape.ffn_hidden_size) / tp
        elementwise *= (3 + products) / 3
        for is_first, is_last, number, layers in _kinds(priced):
            held = parameters(shape, layers, is_first, is_last) / tp
            yield StageWork(
                matmul_flops=2 * tokens * (layers * wide * (3 + products) + 3 * table * is_last) / tp,
                attention_flops=layers * (CAUSAL_FORWARD_AND_BACKWARD + attention) * of_attention,
                memory_bytes=layers * elementwise
                + 8 * FLOAT32 * tokens * shape.vocab_size / tp * is_last
                + (2 * FLOAT32 + BFLOAT16) * held,
                operators=layers * OPERATORS_OF_A_LAYER * (3 + products) / 3,
                messages=[
                    *self._of_layers(priced, layers, products),
                    *self._of_rings(priced, layers, attention, of_attention),
                ],
                parameters=held,
                stages=number,
                neighbours=0 if layout.pp == 1 else (2 - is_first - is_last) * priced.chunks,
            )

    def _of_layers(self, priced: PricedJob, layers: int, repeated: float) -> Iterator[Messages]:
        """With sequence parallelism two gathers and two scatters in each direction, without it two all-reduces.

        Korthikanti et al., section 4.2.2 and figure 5. With it the gradient of a column-parallel product's input is
        scattered behind the product for the weight's, and that input is gathered again behind the product for its
        gradient: LinearWithGradAccumulationAndAsyncCommunication in megatron/core/tensor_parallel/layers.py.
        All-reduces are waited for, as in software without sequence parallelism; Megatron-Core can hide half of them.
        """
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tp, tokens = layout.tp, job.local_tokens
        if tp == 1:
            return
        at = reach(layout, "tp", priced.ranks_per_node, "megatron")
        size_bytes = BFLOAT16 * tokens * shape.hidden_size
        attention = shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads)
        # those of both column-parallel products of a layer, in one direction
        products = 2 * tokens * shape.hidden_size * (attention + 2 * shape.ffn_hidden_size) / tp

        def sent(op: str, count: float, behind: float = 0.0) -> Messages:
            number, flops = round(layers * count), layers * behind
            return Messages("tp", op, tp, at.nodes, at.sharing, size_bytes, number, flops)

        if layout.sp:
            yield sent("all_gather", 6 + 4 * repeated)
            yield sent("reduce_scatter", 2, products)
            yield sent("all_gather", 2, products)
        else:
            yield sent("all_reduce", 4 + 2 * repeated)

    def _of_rings(self, priced: PricedJob, layers: int, repeated: float, of_attention: float) -> Iterator[Messages]:
        """Keys and values that pass from rank to rank of cp, behind attention with those that are there.

        Each rank has two chunks, of which it is as much that is not masked as of any other's. Forward and backward
        pass on the blocks of keys and values cp - 1 times, and backward the sums of their gradients cp times.
        """
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        if (cp := layout.cp) == 1:
            return
        at = reach(layout, "cp", priced.ranks_per_node, "megatron")
        size_bytes = 2 * BFLOAT16 * job.local_tokens * shape.head_dim * shape.num_kv_heads / layout.tp
        of_block = of_attention * (cp - 1) / cp  # nothing passes behind the last one
        for times, forwards in (
            ((cp - 1) * (1 + repeated), 1 + repeated),
            (2 * cp - 1, CAUSAL_FORWARD_AND_BACKWARD - 1),
        ):
            yield Messages(
                "cp",
                "send_recv",
                cp,
                at.nodes,
                at.sharing,
                size_bytes,
                layers * times,
                behind_attention=layers * forwards * of_block,
            )

    def _gradients(self, priced: PricedJob, held: float, hides: bool) -> Iterator[Messages]:
        """What a step sends along dp, whole or in buckets: DistributedDataParallel in megatron/core/distributed."""
        layout = priced.job.layout
        axis = layout.data_axis  # ranks of cp have the same weights, too
        if (ranks := layout.degree(axis)) == 1:
            return
        at = reach(layout, axis, priced.ranks_per_node, "megatron")
        buckets = ceil(held / max(BUCKET, BUCKET_OF_A_RANK * ranks)) if hides else 1
        sent = [("reduce_scatter", FLOAT32), ("all_gather", BFLOAT16)] if layout.zero else [("all_reduce", FLOAT32)]
        for op, size in sent:
            yield Messages("dp", op, ranks, at.nodes, at.sharing, size * held / buckets, buckets)

    def memory(self, priced: PricedJob) -> Sequence[Mapping[str, float]]:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tokens, tp, shard = job.local_tokens, layout.tp, layout.degree(layout.data_axis) if layout.zero else 1
        pp = layout.pp
        kept = kept_of_a_layer(priced, priced.recompute == "full", is_fused=True)
        # of the one that is computed again
        of_layer = kept_of_a_layer(priced, False, is_fused=True) * (priced.recompute == "full")
        held = []
        for place, layers in enumerate(_layers(priced)):
            weights = parameters(shape, layers, place == 0, place == pp - 1) / tp
            interleaved = 1 + (pp - 1) / (pp * priced.chunks) if priced.chunks > 1 else 1.0
            in_flight = min(pp - place, priced.num_micro_batches) * interleaved
            held.append(
                {
                    "parameters": BFLOAT16 * weights,
                    "gradients": FLOAT32 * weights,
                    "optimizer_state": 3 * FLOAT32 * weights / shard,
                    "activations": layers * kept * in_flight
                    + of_layer
                    + 6 * tokens * shape.vocab_size / tp * (place == pp - 1),
                }
            )
        return held


@lru_cache(maxsize=4096)  # a sweep asks for every layout
def stages_of(num_layers: int, pp: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of each stage; None where no rule of Megatron's divides them.

    As many on each; else with ``account_for_embedding_in_pipeline_split``, ``account_for_loss_in_pipeline_split`` or
    both, by which the first stage, the last or both have one fewer: Llama 3's 126 layers on 16 stages. Else, without
    chunks, those between the ends have as many as need be, and ``decoder_first_pipeline_num_layers`` and
    ``decoder_last_pipeline_num_layers`` give the ends what is left: BigScience's 78 layers on 12 stages.

    >>> stages_of(126, 16, 1)[:2], stages_of(126, 16, 1)[-1], stages_of(32, 3, 1), stages_of(32, 3, 2)
    ((7, 8), 7, (11, 11, 10), None)
    >>> stages_of(78, 12, 1), stages_of(33, 2, 1), stages_of(16, 32, 1)
    ((4, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 4), (17, 16), None)
    """
    for embedding, loss in ((0, 0), (1, 1), (0, 1), (1, 0)) if pp > 1 else ((0, 0),):
        of_stage, rest = divmod(num_layers + embedding + loss, pp)
        if rest or of_stage % chunks or of_stage <= max(embedding, loss):
            continue
        layers = [of_stage] * pp
        layers[0] -= embedding
        layers[-1] -= loss
        return tuple(layers)
    if chunks == 1 and num_layers >= pp > 1:
        of_stage = ceil(num_layers / pp)
        if num_layers - of_stage * (pp - 2) < 2:  # none left for one of the ends
            of_stage -= 1
        at_ends = num_layers - of_stage * (pp - 2)
        return (at_ends - at_ends // 2, *[of_stage] * (pp - 2), at_ends // 2)
    return None


def _layers(priced: PricedJob) -> tuple[int, ...]:
    """Of each stage, of a step to which there is no objection."""
    layers = stages_of(priced.job.shape.num_layers, priced.job.layout.pp, priced.chunks)
    assert layers is not None
    return layers


def _kinds(priced: PricedJob) -> Iterator[tuple[bool, bool, int, int]]:
    """Kinds of stages: whether the first, whether the last, how many there are, and how many layers each has."""
    layers = _layers(priced)
    if len(layers) == 1:
        yield True, True, 1, layers[0]
        return
    yield True, False, 1, layers[0]
    if len(layers) > 2:
        yield False, False, len(layers) - 2, layers[1]
    yield False, True, 1, layers[-1]
