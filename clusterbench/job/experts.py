"""What a mixture of experts weighs and keeps, as numbers. No torch."""

from __future__ import annotations

from math import gcd

from clusterbench.shape import ModelShape

INDEX_BYTES = 8


def expert_weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """The weights of a layer that replace the dense feed-forward's, whole, in the order of the model.

    Matrices of experts stand below one another, so that FSDP, which cuts rows, finds enough of them on any number of
    ranks: of 8 experts in a dimension of their own 24 ranks would have 8 with one each, and 16 with nothing.

    >>> from clusterbench.shape import named_shape
    >>> expert_weight_shapes(named_shape("moe-tiny"))["feed_forward.experts.down"]
    (1024, 192)
    """
    experts, hidden, width = shape.num_experts, shape.hidden_size, shape.ffn_hidden_size
    weights: dict[str, tuple[int, ...]] = {
        "feed_forward.router.weight": (experts, hidden),
        "feed_forward.experts.gate": (experts * width, hidden),
        "feed_forward.experts.up": (experts * width, hidden),
        "feed_forward.experts.down": (experts * hidden, width),
    }
    if shape.num_shared_experts:
        shared = shape.num_shared_experts * width
        weights |= {
            "feed_forward.shared.gate.weight": (shared, hidden),
            "feed_forward.shared.up.weight": (shared, hidden),
            "feed_forward.shared.down.weight": (hidden, shared),
        }
    return weights


def expert_activations(
    shape: ModelShape, tokens: int, size_bytes: int, ep: int = 1, load: float = 1.0
) -> dict[str, float]:
    """Bytes one layer keeps for backward in place of the dense feed-forward's, by what they are.

    Exact on one rank; with experts over ``ep`` ranks, where every expert gets as many rows: a rank then computes as
    many rows as it sends, ``tokens`` times the experts of a token; with another ``load`` so many times as many.
    """
    chosen, rows = shape.experts_per_token, tokens * shape.experts_per_token
    computed = rows * load
    wide = max(4, size_bytes)  # the router's softmax and weights are computed in float32 at least
    held = {
        "feed_forward.input": tokens * shape.hidden_size * size_bytes,
        "router.probabilities": tokens * shape.num_experts * wide,
        "router.chosen": rows * INDEX_BYTES,
        # of the chosen before and after they are divided by their sum, the sums, and a copy in the compute dtype
        "router.weights": tokens * ((chosen + 1) * wide * (chosen > 1) + chosen * size_bytes),
        "experts.order": 2 * rows * INDEX_BYTES,
        "experts.arrangement": 2 * computed * INDEX_BYTES * (1 < ep < shape.num_experts),
        "experts.input": computed * shape.hidden_size * size_bytes,
        "experts.gate": computed * shape.ffn_hidden_size * size_bytes,
        "experts.silu": computed * shape.ffn_hidden_size * size_bytes,
        "experts.up": computed * shape.ffn_hidden_size * size_bytes,
        "experts.product": computed * shape.ffn_hidden_size * size_bytes,
        "experts.output": rows * shape.hidden_size * size_bytes,
        "expert_counts": shape.num_experts * (INDEX_BYTES + 4 * (size_bytes < 8)),
    }
    if shape.num_shared_experts:
        per_matrix = tokens * shape.num_shared_experts * shape.ffn_hidden_size * size_bytes
        held |= {f"shared.{name}": per_matrix for name in ("gate", "silu", "up", "product")}
    return {name: float(size) for name, size in held.items()}


UNEVEN = "uneven"
"""Routing of a small twin in the dtype of its job, which no suite asks for: by a token's place, to one expert more."""


def even_tokens(shape: ModelShape) -> int:
    """Of how many consecutive tokens balanced routing sends as many rows to every expert.

    >>> from clusterbench.shape import named_shape
    >>> even_tokens(named_shape("mixtral-8x7b"))
    4
    """
    return shape.num_experts // gcd(shape.num_experts, shape.experts_per_token)
