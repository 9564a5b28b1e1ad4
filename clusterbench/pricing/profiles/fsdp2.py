"""PyTorch's fully_shard on dense models, compiled, as torchtitan and trainers like it use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from clusterbench.layout import REPLICA, SHARD
from clusterbench.parallel.fsdp import FullySharded
from clusterbench.pricing.profiles import BACKWARD, PricedJob, Profile, reach, reach_of_shards
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
from clusterbench.pricing.work import Messages, StageWork, StepWork

OPERATORS_OF_A_LAYER = 60
"""That the host launches in forward and backward of a compiled layer, with what fully_shard copies."""

LOGITS_KEPT = 2 * BFLOAT16
"""Bytes of a logit and its gradient: a compiled loss widens none in memory (torchtitan/components/loss.py), nor does
the fused one of MosaicML's LLM Foundry (llmfoundry/models/mpt/modeling_mpt.py)."""

RECOMPUTED = ("none", "selective", "full")


class Again(NamedTuple):
    """Forwards of a layer that backward computes again: of its products, attention, other operators and messages."""

    products: float
    attention: float
    elementwise: float
    messages: float


def computed_again(priced: PricedJob) -> Again:
    """Of selective recomputation every second product, and all operators that are bound by memory.

    ``_apply_op_sac`` keeps what attention and each other product gives, in the order of a layer: it computes again
    those of keys, of attention's output and of the up projection. What tp scatters is kept, what it gathers is not.

    Source: pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py, as of 2025.
    """
    shape = priced.job.shape
    if priced.recompute == "selective":
        wide = shape.head_dim * (shape.num_heads + shape.num_kv_heads) + shape.ffn_hidden_size
        return Again(shape.hidden_size * wide / weights_of_a_layer(shape), 0.0, 1.0, 0.5 if priced.job.layout.sp else 1)
    return Again(1.0, 1.0, 1.0, 1.0) if priced.recompute == "full" else Again(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Fsdp2(Profile):
    """Weights gathered in bfloat16 layer by layer, forward and backward of each micro-batch; gradients in float32."""

    source: ClassVar[str] = (
        "pytorch/pytorch, torch/distributed/fsdp/_fully_shard (what is gathered, prefetched and reduced); "
        "pytorch/torchtitan, torchtitan/models/llama3 (order of tp, compile and fully_shard), "
        "torchtitan/distributed/activation_checkpoint.py (what selective keeps)"
    )
    usual_zero: ClassVar[int] = 3
    usual_reduce_dtype: ClassVar[str] = "float32"

    def objection(self, priced: PricedJob) -> str | None:
        if (why := objection_to_decoder(priced)) is not None:
            return why
        layout = priced.job.layout
        if layout.pp > 1:
            return f"this profile knows dp and tp, and no stages: pp is {layout.pp}"
        if layout.dp > 1 and layout.zero < 2:
            return f"weights are sharded over dp: ZeRO 2 or 3, not {layout.zero}"
        if layout.dp > 1 and (why := FullySharded(shard_group_size=priced.shard_group_size).objection(priced.job)):
            return why
        if priced.recompute not in RECOMPUTED:
            return f"recompute '{priced.recompute}' is not one of {', '.join(RECOMPUTED)}"
        return None

    def work(self, priced: PricedJob) -> StepWork:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tokens, tp, layers = job.tokens_per_micro_batch, layout.tp, shape.num_layers
        again = computed_again(priced)
        wide, table = weights_of_a_layer(shape), shape.embedding_parameters
        held = parameters(shape, layers, True, True) / tp
        # compiled: norms and residuals 44 h, rotations 16 h, SwiGLU 16 f
        elementwise: float = job.residual_tokens * 44 * shape.hidden_size
        elementwise += tokens * 16 * (shape.hidden_size + shape.ffn_hidden_size) / tp
        elementwise *= (3 + again.elementwise) / 3
        matmul = 2 * tokens * (layers * wide * (3 + again.products) + 3 * table) / tp
        stage = StageWork(
            matmul_flops=matmul,
            attention_flops=layers
            * (CAUSAL_FORWARD_AND_BACKWARD + again.attention)
            * attention_forward_flops(priced)
            / tp,
            memory_bytes=layers * elementwise + 8 * FLOAT32 * tokens * shape.vocab_size / tp + 4 * BFLOAT16 * held,
            operators=layers * OPERATORS_OF_A_LAYER * (3 + again.elementwise) / 3,
            messages=[*self._over_tp(priced, again.messages), *self._of_weights(priced, held, matmul)],
            parameters=held,
        )
        return StepWork(
            head_dim=shape.head_dim,
            num_micro_batches=priced.num_micro_batches,
            stages=[stage],
            boundary_bytes=0.0,
            pipeline_nodes=1,
            gradients=[],
            after=[],
            optimizer_bytes=(4 + 12 + 12) * held / (priced.shard_group_size or layout.dp),
        )

    def _over_tp(self, priced: PricedJob, repeated: float) -> Iterator[Messages]:
        layout, layers = priced.job.layout, priced.job.shape.num_layers
        if layout.tp > 1:
            at = reach(layout, "tp", priced.ranks_per_node, "torchtitan")
            size_bytes = BFLOAT16 * priced.job.tokens_per_micro_batch * priced.job.shape.hidden_size
            # a gather and a scatter with sequence parallelism are one all-reduce without
            op, of_layer = ("all_gather", 8 + 4 * repeated) if layout.sp else ("all_reduce", 4 + 2 * repeated)
            yield Messages("tp", op, layout.tp, at.nodes, at.sharing, size_bytes, round(layers * of_layer))

    def _of_weights(self, priced: PricedJob, held: float, matmul: float) -> Iterator[Messages]:
        """Each layer's weights gathered behind the layer before, its gradients scattered behind the next one.

        With HSDP the copies then add up what each rank has of the gradients, in every micro-batch, too.
        """
        layout, layers = priced.job.layout, priced.job.shape.num_layers
        if layout.dp == 1:
            return
        shard = priced.shard_group_size or layout.dp
        copies = layout.dp // shard
        apart = priced.replicas_have_a_network
        gathers = 2 if layout.zero == 3 else 1
        sent = held * (BFLOAT16 if priced.reduce_dtype == "bfloat16" else FLOAT32)
        behind = matmul / (gathers + 1 + (copies > 1 and not apart))
        for axis, ranks, op, size_bytes, count, hidden in (
            (SHARD, shard, "all_gather", BFLOAT16 * held, gathers, gathers * behind),
            (SHARD, shard, "reduce_scatter", sent, 1, behind),
            (REPLICA, copies, "all_reduce", sent / shard, 1, BACKWARD * matmul if apart else behind),
        ):
            if ranks > 1:
                at = reach_of_shards(layout, axis, ranks, priced.ranks_per_node, "torchtitan")
                size = size_bytes / layers
                yield Messages("dp", op, ranks, at.nodes, at.sharing, size, count * layers, hidden, False)

    def memory(self, priced: PricedJob) -> Sequence[Mapping[str, float]]:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tokens, tp, shard = job.tokens_per_micro_batch, layout.tp, priced.shard_group_size or layout.dp
        weights = parameters(shape, shape.num_layers, True, True) / tp
        kept = of_layer = kept_of_a_layer(priced, False)
        if priced.recompute == "full":
            kept = kept_of_a_layer(priced, True)
        elif priced.recompute == "selective":
            # the layer's input and output; of queries, values and attention; of the gate
            sliced = 2 * shape.hidden_size + shape.head_dim * shape.num_kv_heads + shape.ffn_hidden_size
            kept = BFLOAT16 * (2 * job.residual_tokens * shape.hidden_size + tokens * sliced / tp)
        # the layers around a gather: two of them, or with ZeRO-2 all
        gathered = weights if layout.zero == 2 else 2 * weights / shape.num_layers
        return [
            {
                "parameters": FLOAT32 * weights / shard + BFLOAT16 * gathered * (shard > 1),
                "gradients": FLOAT32 * weights / shard,
                "optimizer_state": 2 * FLOAT32 * weights / shard,
                # beside what is kept all of the layer that is computed again
                "activations": shape.num_layers * kept
                + of_layer * (priced.recompute != "none")
                + LOGITS_KEPT * tokens * shape.vocab_size / tp,
            }
        ]
