"""torchtitan's Llama of a given shape: its configuration, and what our weights are called in it."""

from __future__ import annotations

from typing import Any

from clusterbench.shape import ModelShape

OF_MODEL = {
    "tok_embeddings.weight": "embedding.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
OF_LAYER = {
    "attention_norm": "attention_norm",
    "attention.qkv_linear.wq": "attention.query",
    "attention.qkv_linear.wk": "attention.key",
    "attention.qkv_linear.wv": "attention.value",
    "attention.wo": "attention.output",
    "ffn_norm": "feed_forward_norm",
    "feed_forward.w1": "feed_forward.gate",
    "feed_forward.w3": "feed_forward.up",
    "feed_forward.w2": "feed_forward.down",
}
_WRAPPERS = "_checkpoint_wrapped_module.", "_orig_mod."


def our_name(name: str) -> str:
    """What a weight of theirs is called here.

    >>> our_name("layers.1._checkpoint_wrapped_module.attention.qkv_linear.wq.weight")
    'layers.1.attention.query.weight'
    """
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    if name in OF_MODEL:
        return OF_MODEL[name]
    layers, index, rest = name.split(".", 2)
    return f"{layers}.{index}.{OF_LAYER[rest.removesuffix('.weight')]}.weight"


def llama_config(shape: ModelShape, seq_len: int, *, sequence_parallel: bool) -> Any:
    """A ``Llama3Model.Config``, with how it is cut over ranks."""
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
    from torchtitan.models.common.param_init import skip_param_init
    from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config

    filled_later = {"weight": skip_param_init}
    hidden, vocabulary = shape.hidden_size, shape.vocab_size

    def norm() -> Any:
        return RMSNorm.Config(normalized_shape=hidden, eps=shape.norm_eps, param_init=filled_later)

    def layer() -> Any:
        return Llama3TransformerBlock.Config(
            attention_norm=norm(),
            ffn_norm=norm(),
            attention=make_gqa_config(
                dim=hidden,
                n_heads=shape.num_heads,
                n_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                wqkv_param_init=filled_later,
                wo_param_init=filled_later,
                inner_attention=ScaledDotProductAttention.Config(),
                rope=CosSinRoPE.Config(dim=shape.head_dim, max_seq_len=seq_len, theta=shape.rope_theta),
            ),
            feed_forward=make_ffn_config(
                dim=hidden,
                hidden_dim=shape.ffn_hidden_size,
                w1_param_init=filled_later,
                w2w3_param_init=filled_later,
            ),
        )

    config = Llama3Model.Config(
        dim=hidden,
        vocab_size=vocabulary,
        enable_weight_tying=shape.tied_embeddings,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=hidden, param_init=filled_later),
        norm=norm(),
        lm_head=Linear.Config(in_features=hidden, out_features=vocabulary, param_init=filled_later),
        layers=[layer() for _ in range(shape.num_layers)],
    )
    set_llama3_sharding_config(config, enable_sp=sequence_parallel)
    return config
