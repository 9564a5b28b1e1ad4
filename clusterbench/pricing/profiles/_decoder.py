"""Amounts of a Llama-like decoder that are the same in every framework."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbench.pricing.profiles import PricedJob, objection_to_options
from clusterbench.shape import ModelShape

BFLOAT16, FLOAT32 = 2, 4

CAUSAL_FORWARD_AND_BACKWARD = 3.5
"""Forwards of attention: backward computes five products where forward computes two."""


def weights_of_a_layer(shape: ModelShape) -> int:
    """Those of products, which are all but two in a thousand."""
    return shape.attention_parameters_per_layer + shape.expert_parameters


def parameters(shape: ModelShape, layers: int, is_first: bool, has_head: bool) -> int:
    """Of a pipeline stage, whole: a tied table is there once where first and last stage are one."""
    tables = is_first + (has_head and not (is_first and shape.tied_embeddings))
    of_norm = shape.hidden_size * has_head
    return layers * shape.parameters_per_layer + tables * shape.embedding_parameters + of_norm


def attention_forward_flops(priced: PricedJob) -> float:
    """Of a layer and micro-batch, the masked half left out, before any rank takes its share."""
    job = priced.job
    return 2.0 * job.tokens_per_micro_batch * job.seq_len * job.shape.num_heads * job.shape.head_dim


def kept_of_a_layer(priced: PricedJob, is_repeated: bool, is_fused: bool = False) -> float:
    """Bytes that a layer keeps for backward of a micro-batch, of one rank; where it is computed again its input.

    What lies between the products of tp, 10 h for each token, is shared by its ranks with sequence parallelism alone;
    the rest is always: equations 2 and 4 of Korthikanti et al. 2022, arXiv:2205.05198, with a fused attention. There
    a feed-forward of two matrices keeps what it gives its GeLU and gets from it; a gated one has twice that, of two
    thirds of the width.

    Parameters
    ----------
    is_fused
        Whether SwiGLU is one operator, which keeps what it is given and works out the rest again, and whether shared
        keys and values are kept as they are, not once for each head. Of the 10 h two are the masks of dropout, which
        those who train gated models leave out.
    """
    job, shape = priced.job, priced.job.shape
    hidden = shape.hidden_size
    if is_repeated:
        return BFLOAT16 * job.residual_tokens * hidden
    whole, of_heads, of_width = 10, 8 * hidden, 8 if priced.is_gated else 6
    if is_fused:
        of_heads = 2 * BFLOAT16 * shape.head_dim * (shape.num_heads + shape.num_kv_heads)
        whole, of_width = 8 if priced.is_gated else 10, 6
    return whole * job.residual_tokens * hidden + job.local_tokens * (
        (of_heads + of_width * shape.ffn_hidden_size) / job.layout.tp
    )


def objection_to_decoder(priced: PricedJob, axes: Sequence[str] = ("dp", "tp", "pp")) -> str | None:
    """Why no dense decoder on these axes can be cut so; None where it can."""
    job, shape, layout = priced.job, priced.job.shape, priced.job.layout
    if (why := job.objection() or objection_to_options(priced)) is not None:
        return why
    if (layout.cp > 1 and "cp" not in axes) or layout.ep > 1 or shape.has_experts:
        known = f"{', '.join(axes[:-1])} and {axes[-1]}"
        return f"this profile knows dense models on {known}, and not {layout} of {shape.name}"
    for name, size in (("heads", shape.num_heads), ("kv_heads", shape.num_kv_heads)):
        if size % layout.tp:
            return f"{name} {size} is no multiple of tp {layout.tp}"
    return None
