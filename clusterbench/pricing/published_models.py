"""Models that published tables name and no step of ours can run: what a price needs to know of them.

Biases, norms of queries and keys and learned positions are left out: of products and bytes they are less than two in a
hundred. A feed-forward of two matrices stands as a gated one of two thirds of its width, as many products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clusterbench.shape import SHAPES, ModelShape


class PublishedModel(NamedTuple):
    """A shape as prices take it, and whether its feed-forward has three matrices."""

    shape: ModelShape
    is_gated: bool = True


def _qwen(
    name: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, head_dim: int, vocab: int, tied: bool
) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=kv_heads,
        vocab_size=vocab,
        head_dim=head_dim,
        tied_embeddings=tied,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        source=f"https://huggingface.co/Qwen/Qwen{name[4:].upper()}/blob/main/config.json",
    )


def _gpt(name: str, layers: int, hidden: int, heads: int, vocab: int, source: str) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=2 * 4 * hidden // 3,
        num_heads=heads,
        num_kv_heads=heads,
        vocab_size=vocab,
        head_dim=hidden // heads,
        tied_embeddings=True,
        rope_theta=10_000.0,
        norm_eps=1e-5,
        source=source,
    )


_OF_GPT = (
    "Brown et al. 2020, arXiv:2005.14165, table 2.1, as microsoft/Megatron-DeepSpeed has it, "
    "examples_deepspeed/rebase/ds_pretrain_gpt_*.sh; the vocabulary of 50,257 padded to 51,200 as Megatron pads it"
)
_OF_OPT = "Zhang et al. 2022, arXiv:2205.01068, table 1; https://huggingface.co/facebook/{}/blob/main/config.json"
_PADDED, _OPT_VOCAB = 51_200, 50_272
_QWEN_SMALL, _QWEN_LARGE = 151_936, 152_064

_GATED = (
    _qwen("qwen2.5-0.5b", 24, 896, 4864, 14, 2, 64, _QWEN_SMALL, True),
    _qwen("qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 128, _QWEN_SMALL, True),
    _qwen("qwen2.5-3b", 36, 2048, 11008, 16, 2, 128, _QWEN_SMALL, True),
    _qwen("qwen2.5-7b", 28, 3584, 18944, 28, 4, 128, _QWEN_LARGE, False),
    _qwen("qwen2.5-14b", 48, 5120, 13824, 40, 8, 128, _QWEN_LARGE, False),
    _qwen("qwen2.5-32b", 64, 5120, 27648, 40, 8, 128, _QWEN_LARGE, False),
    _qwen("qwen2.5-72b", 80, 8192, 29568, 64, 8, 128, _QWEN_LARGE, False),
    _qwen("qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, _QWEN_SMALL, True),
    _qwen("qwen3-1.7b", 28, 2048, 6144, 16, 8, 128, _QWEN_SMALL, True),
    _qwen("qwen3-4b", 36, 2560, 9728, 32, 8, 128, _QWEN_SMALL, True),
    _qwen("qwen3-8b", 36, 4096, 12288, 32, 8, 128, _QWEN_SMALL, False),
    _qwen("qwen3-14b", 40, 5120, 17408, 40, 8, 128, _QWEN_SMALL, False),
    _qwen("qwen3-32b", 64, 5120, 25600, 64, 8, 128, _QWEN_SMALL, False),
)
_OF_TWO_MATRICES = (
    _gpt("gpt3-1.3b", 24, 2048, 16, _PADDED, _OF_GPT),
    _gpt("gpt3-6.7b", 32, 4096, 32, _PADDED, _OF_GPT),
    _gpt("gpt3-13b", 40, 5120, 40, _PADDED, _OF_GPT),
    _gpt("gpt3-175b", 96, 12288, 96, _PADDED, _OF_GPT),
    _gpt("opt-1.3b", 24, 2048, 32, _OPT_VOCAB, _OF_OPT.format("opt-1.3b")),
    _gpt("opt-6.7b", 32, 4096, 32, _OPT_VOCAB, _OF_OPT.format("opt-6.7b")),
    _gpt("opt-13b", 40, 5120, 40, _OPT_VOCAB, _OF_OPT.format("opt-13b")),
    _gpt("opt-30b", 48, 7168, 56, _OPT_VOCAB, _OF_OPT.format("opt-30b")),
    _gpt("opt-66b", 64, 9216, 72, _OPT_VOCAB, _OF_OPT.format("opt-66b")),
)

PUBLISHED: Mapping[str, PublishedModel] = {
    **{shape.name: PublishedModel(shape) for shape in _GATED},
    **{shape.name: PublishedModel(shape, is_gated=False) for shape in _OF_TWO_MATRICES},
}
"""Of tables alone: :data:`clusterbench.shape.SHAPES` are those that a step can run, weight by weight."""


def published_model(name: str) -> PublishedModel | None:
    """A model on record by its name, of those that can run or of those that tables name; None of any other.

    >>> published_model("qwen3-8b").shape.num_layers, published_model("llama2-7b").is_gated, published_model("x")
    (36, True, None)
    """
    return PublishedModel(SHAPES[name]) if name in SHAPES else PUBLISHED.get(name)
