"""nanotron, as it ran the sweep of the Ultra-Scale Playbook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from math import ceil
from typing import ClassVar, NamedTuple

from clusterbench.options import option
from clusterbench.pricing.profiles import PricedJob, Profile, reach, sharing_words
from clusterbench.pricing.profiles._decoder import (
    BFLOAT16,
    CAUSAL_FORWARD_AND_BACKWARD,
    FLOAT32,
    attention_forward_flops,
    objection_to_decoder,
    parameters,
    weights_of_a_layer,
)
from clusterbench.pricing.work import Messages, StageWork, StepWork
from clusterbench.shape import ModelShape

OPERATORS_OF_A_LAYER = 250
"""That the host launches in forward and backward of a layer, with views and copies."""

BUCKET_BYTES = 25 * 2**20
"""Of bfloat16 gradients: DDP's default, which nanotron's ddp_bucket_cap_mb has, too. They are reduced in float32."""


class Stage(NamedTuple):
    """Layers of a pipeline stage, and whether it ends with the head."""

    layers: int
    has_head: bool


@dataclass(frozen=True)
class Nanotron(Profile):
    """AdamW with float32 gradients, sequence parallelism with tp, 1F1B, and a ZeRO-1 that all-reduces."""

    tp_recompute_allgather: bool = option(
        True, "gather inputs of column-parallel products again in backward instead of keeping them"
    )

    source: ClassVar[str] = (
        "huggingface/nanotron at 01de8d9: models/base.py (stages), models/llama.py (layers), parallel/tensor_parallel "
        "(collectives), trainer.py and optim/gradient_accumulator.py (gradients, DDP only without ZeRO)"
    )

    def objection(self, priced: PricedJob) -> str | None:
        layout, micro_batches = priced.job.layout, priced.num_micro_batches
        if (why := objection_to_decoder(priced)) is not None:
            return why
        if priced.shard_group_size:
            return f"this profile knows ZeRO 0 and 1, and not {sharing_words(priced)}"
        if layout.zero > 1 or priced.chunks > 1 or priced.recompute != "none":
            return "this profile knows ZeRO 0 and 1, 1F1B without interleaving, and no recomputation of layers"
        if layout.tp > 1 and not layout.sp:
            return "this profile knows tp_mode REDUCE_SCATTER, tp with sequence parallelism, and not ALL_REDUCE"
        if micro_batches < layout.pp - 1:
            return f"{micro_batches} micro-batches on {layout.pp} stages: 1F1B asserts at least {layout.pp - 1}"
        return None

    def work(self, priced: PricedJob) -> StepWork:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        stages = list(self._stages(priced))
        fullest = max(stage.parameters for stage in stages)
        shard = layout.dp if layout.zero else 1
        return StepWork(
            head_dim=shape.head_dim,
            num_micro_batches=priced.num_micro_batches,
            stages=stages,
            boundary_bytes=BFLOAT16 * job.tokens_per_micro_batch * shape.hidden_size / layout.tp,
            pipeline_nodes=priced.num_nodes,
            # with ZeRO-1 there is no DDP, and one all-reduce of all gradients when backward is over
            gradients=[] if layout.zero else list(self._gradients(priced, fullest)),
            after=list(self._gradients(priced, fullest)) if layout.zero else [],
            # the float32 gradients, their norm and the rounded weights are whole; AdamW's state is the rank's share
            optimizer_bytes=16 * fullest + 60 * fullest / shard,
        )

    def _stages(self, priced: PricedJob) -> Iterator[StageWork]:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tokens, tp = job.tokens_per_micro_batch, layout.tp
        wide, table = weights_of_a_layer(shape), shape.embedding_parameters
        # read and written by what is not fused: norms, rotations, SwiGLU, residuals, in both directions
        elementwise = tokens * (129 * shape.hidden_size + 36 * shape.ffn_hidden_size) / tp
        attention = CAUSAL_FORWARD_AND_BACKWARD * attention_forward_flops(priced) / tp
        place = 0
        for (is_first, stage), alike in groupby(enumerate(stages_of(shape, layout.pp)), lambda at: (not at[0], at[1])):
            number, (layers, has_head) = len(list(alike)), stage
            place += number
            held = parameters(shape, layers, is_first, has_head) / tp
            # the loss goes over float32 logits 13 times
            of_loss = 13 * FLOAT32 * tokens * shape.vocab_size / tp * has_head
            yield StageWork(
                matmul_flops=6 * tokens * (layers * wide + table * has_head) / tp,
                attention_flops=layers * attention,
                # each gradient is added to the float32 one: both read, one written
                memory_bytes=layers * elementwise + of_loss + (2 * FLOAT32 + BFLOAT16) * held,
                operators=layers * OPERATORS_OF_A_LAYER,
                messages=list(self._of_layers(priced, layers)),
                parameters=held,
                stages=number,
                neighbours=0 if layout.pp == 1 else 2 - is_first - (place == layout.pp),
            )

    def _of_layers(self, priced: PricedJob, layers: int) -> Iterator[Messages]:
        """What layers send over tp: each product's input is gathered or its output scattered, in both directions.

        With tp_linear_async_communication what backward gathers of an input passes behind the product for its gradient,
        and the scattering of that behind the product for the weight's; in forward a gather passes behind the product
        with the rank's own part.
        """
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tp, tokens = layout.tp, job.tokens_per_micro_batch
        if tp == 1:
            return
        at = reach(layout, "tp", priced.ranks_per_node, "nanotron")
        attention = shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads)
        size_bytes = BFLOAT16 * tokens * shape.hidden_size
        again = 2 if self.tp_recompute_allgather else 1

        def sent(count: int, behind: float = 0.0) -> Messages:
            return Messages("tp", "all_gather", tp, at.nodes, at.sharing, size_bytes, layers * count, layers * behind)

        for outputs in (attention, 2 * shape.ffn_hidden_size):
            product = 2 * tokens * shape.hidden_size * outputs / tp
            yield sent(1, product / tp)
            yield sent(again, again * product)
        # the outputs of attention and feed-forward: scattered in forward, gathered in backward
        yield sent(4)

    def _gradients(self, priced: PricedJob, held: float) -> Iterator[Messages]:
        layout = priced.job.layout
        if layout.dp == 1:
            return
        at = reach(layout, "dp", priced.ranks_per_node, "nanotron")
        buckets = 1 if layout.zero else ceil(BFLOAT16 * held / BUCKET_BYTES)
        yield Messages("dp", "all_reduce", layout.dp, at.nodes, at.sharing, FLOAT32 * held / buckets, buckets)
        if layout.zero:
            yield Messages("dp", "all_gather", layout.dp, at.nodes, at.sharing, BFLOAT16 * held)

    def memory(self, priced: PricedJob) -> Sequence[Mapping[str, float]]:
        job, shape, layout = priced.job, priced.job.shape, priced.job.layout
        tokens, tp, shard = job.tokens_per_micro_batch, layout.tp, layout.dp if layout.zero else 1
        kept = tokens * (18 * shape.hidden_size + 8 * shape.ffn_hidden_size) / tp
        if not self.tp_recompute_allgather:
            kept += 3.6 * tokens * shape.hidden_size
        of_head = tokens * ((10 * shape.vocab_size + 8 * shape.ffn_hidden_size) / tp + 4 * shape.hidden_size)
        held = []
        for place, (layers, has_head) in enumerate(stages_of(shape, layout.pp)):
            weights = parameters(shape, layers, place == 0, has_head) / tp
            in_flight = min(layout.pp - place, priced.num_micro_batches)
            held.append(
                {
                    "parameters": BFLOAT16 * weights,
                    "gradients": (FLOAT32 + BFLOAT16) * weights,
                    "optimizer_state": 3 * FLOAT32 * weights / shard,
                    "communication": BFLOAT16 * weights,  # DDP's buckets, or what ZeRO-1 gathers
                    "activations": layers * kept * in_flight + of_head * has_head,
                }
            )
        return held


@lru_cache(maxsize=4096)  # a sweep asks for every layout
def stages_of(shape: ModelShape, pp: int) -> tuple[Stage, ...]:
    """How nanotron lays a model over stages: a stage takes blocks until it has more than its share of the products.

    Of a layer it counts the products of attention as if there were as many kv heads as heads.

    >>> from clusterbench.shape import named_shape
    >>> [stage.layers for stage in stages_of(named_shape("playbook-8b"), 4)]
    [9, 9, 8, 6]
    """
    layer = 4 * shape.hidden_size**2 + 3 * shape.ffn_hidden_size * shape.hidden_size
    # embedding, layers, norm, head
    blocks = [0, *[layer] * shape.num_layers, 0, shape.vocab_size * shape.hidden_size]
    whole, stage = sum(blocks), 0
    layers, head = [0] * pp, 0
    for place, done in enumerate(accumulate(blocks)):
        layers[stage] += 1 <= place <= shape.num_layers
        head = stage
        stage += done * pp > whole * (stage + 1)
    return tuple(Stage(number, place == head) for place, number in enumerate(layers))
