"""A model's ``config.json``, as Hugging Face transformers writes it, in the words of a shape.

Every key is read, held against the one value that the models here have, ignored for a reason, or refused: a key that is
passed over unseen might be what makes the model another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from clusterbench.errors import SuiteError, nearest
from clusterbench.options import as_yaml
from clusterbench.yaml_lines import Items, Node, Scalar, Table, Value

Given = Mapping[str, tuple[str, Scalar]]
"""By the name of a shape's number: the key under which it was given, and its value."""


@dataclass(frozen=True)
class _Kind:
    """Keys of a ``model_type`` beside those of :data:`_OF_ALL`.

    ``kv_heads_are_heads`` says whether a config without ``num_key_value_heads`` means as many as there are heads, and
    ``window`` is what transformers takes for ``sliding_window`` where a config has none.
    """

    keys: Mapping[str, str] = field(default_factory=lambda: {"ffn_hidden_size": "intermediate_size"})
    ignored: frozenset[str] = frozenset()
    kv_heads_are_heads: bool = True
    window: int | None = None


_OF_ALL = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
}
_NEEDED = ("num_layers", "hidden_size", "num_heads", "vocab_size", "ffn_hidden_size", "num_experts")

KINDS: Mapping[str, _Kind] = {
    "llama": _Kind(),
    "mistral": _Kind(kv_heads_are_heads=False, window=4096),
    "phi3": _Kind(),  # queries, keys and values are rows of one matrix, gate and up of another: the same products
    "mixtral": _Kind(
        {
            "ffn_hidden_size": "intermediate_size",
            "num_experts": "num_local_experts",
            "experts_per_token": "num_experts_per_tok",
        },
        kv_heads_are_heads=False,
    ),
    "deepseek": _Kind(
        {
            "ffn_hidden_size": "moe_intermediate_size",
            "num_experts": "n_routed_experts",
            "experts_per_token": "num_experts_per_tok",
            "num_shared_experts": "n_shared_experts",
        },
        ignored=frozenset({"intermediate_size"}),  # of dense layers, and first_k_dense_replace says that there is none
    ),
}
"""By ``model_type``: those whose layers are the layers here, weight by weight."""

_NORMS = "its attention norms queries and keys"
_BIASES = "its queries, keys and values have biases"
_MLA = "its attention keeps a latent of keys and values (MLA)"
_GELU = "its feed-forward is no SwiGLU"
_LAYER_NORM = "its norms are LayerNorm, and here they are RMSNorm"
_SCALES = "it multiplies embeddings, residuals and logits with numbers of its own"
_NO_POSITIONS = "some of its layers have no rotary positions"
_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("qwen3", "qwen3_moe", "olmo2", "olmo3", "olmoe"), _NORMS),
    **dict.fromkeys(("qwen2", "qwen2_moe", "gpt_oss", "glm", "glm4", "seed_oss"), _BIASES),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _MLA),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "starcoder2"), _GELU),
    **dict.fromkeys(("phi", "opt", "bloom", "mpt", "falcon", "nemotron"), _GELU),
    **dict.fromkeys(("olmo", "cohere", "cohere2", "stablelm"), _LAYER_NORM),
    **dict.fromkeys(("granite", "minicpm"), _SCALES),
    **dict.fromkeys(("smollm3", "llama4_text"), _NO_POSITIONS),
    "glm4_moe": "its routers take a sigmoid, and here they take a softmax",
}
"""Why a model of another type is another model, where no key of its config says so."""

_WINDOW = "attention here is over the whole sequence"
_NO_BIAS = "no weight here has a bias"
_NO_DROPOUT = "the models here have no dropout"
_ALIKE = "all layers here are alike"
_NO = (False, None)
ONLY: Mapping[str, tuple[tuple[Value, ...], str]] = {
    "hidden_act": (("silu", "swish"), "the feed-forward here is SwiGLU"),
    "activation": (("swiglu",), "the feed-forward here is SwiGLU"),  # beside hidden_act, as Falcon 3 has it
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), ((None,), _WINDOW)),
    "use_sliding_window": (_NO, _WINDOW),
    **dict.fromkeys(("attention_bias", "mlp_bias", "qkv_bias", "use_bias", "bias"), (_NO, _NO_BIAS)),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm"), (_NO, "queries and keys here have no norm")),
    **dict.fromkeys(
        ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        ((None,), "attention here has whole keys and values, and no latent of them (MLA)"),
    ),
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"), ((0.0, None), _NO_DROPOUT)),
    "router_jitter_noise": ((0.0, None), "routers here add no noise"),
    "scoring_func": (("softmax",), "routers here take a softmax"),
    "first_k_dense_replace": ((0,), _ALIKE),
    "moe_layer_freq": ((1,), _ALIKE),
    "num_nextn_predict_layers": ((0, None), "the models here predict one token"),
    "partial_rotary_factor": ((1.0, None), "rotary positions here turn all channels of a head"),
    "rope_interleaved": (_NO, "rotary positions here turn a channel with the one half a head away"),
    "clip_qkv": ((None,), "nothing here clips queries, keys and values"),
    "is_encoder_decoder": ((False,), "the models here are decoders"),
    "add_cross_attention": ((False,), "the models here are decoders"),
    "text_config": ((), "the models here are decoders of text"),
    "vision_config": ((), "the models here are decoders of text"),
}
"""Keys that a config may have with one of these values, and what it would otherwise ask for."""

IGNORED = frozenset(
    (
        # how a checkpoint is found, stored and served
        *("auto_map", "transformers_version", "torch_dtype", "dtype", "quantization_config", "use_cache"),
        *("transformers.js_config", "is_llama_config"),
        *("_name_or_path", "_attn_implementation", "attn_implementation", "pretraining_tp", "is_decoder"),
        # of tokens, lengths and first values: a suite says seq_len and seed
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "max_position_embeddings"),
        *("original_max_position_embeddings", "initializer_range", "max_window_layers", "tokenizer_class"),
        # what a router's choice is weighted with, and the loss beside: the option aux_loss is the suite's
        *("norm_topk_prob", "output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux"),
    )
)
"""Keys without effect on what a training step here computes, holds and sends."""

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""Ways to scale rotary frequencies: each changes numbers of a table, and neither parameters nor products."""
_OF_ROPE = ("rope_theta", "partial_rotary_factor")


def is_config(table: Table) -> bool:
    """Whether a mapping is in Hugging Face's words."""
    return "model_type" in table.values or "architectures" in table.values


def numbers_of_config(table: Table, path: str) -> Given:
    """The numbers of a shape that a config has, each with its own key.

    Raises
    ------
    SuiteError
        Naming the key, with file and line, what is not ours, and what would be.
    """
    kind = _kind(table, path)
    keys = {**_OF_ALL, **kind.keys}
    for key, node in table.values.items():
        _check(key, node, table.lines[key], path, {*keys.values(), *kind.ignored})
    values = {**dict(_rope(table, path)), **table.values}
    scalars = {key: node for key, node in values.items() if isinstance(node, Scalar) and node.value is not None}
    given = {name: (key, scalars[key]) for name, key in keys.items() if key in scalars}
    needed = [name for name in (*_NEEDED, *["num_kv_heads"] * (not kind.kv_heads_are_heads)) if name in keys]
    if missing := [keys[name] for name in needed if name not in given]:
        raise SuiteError(f"{path}:{table.line}: the config has no '{missing[0]}'.")
    if kind.window and "sliding_window" not in table.values:
        raise SuiteError(
            f"{path}:{table.line}: the config has no 'sliding_window', which transformers takes for {kind.window}, and "
            f'{_WINDOW}.\nhint: write "sliding_window": null where the model has none'
        )
    return given


def _kind(table: Table, path: str) -> _Kind:
    node = table.values.get("model_type")
    name = node.value if isinstance(node, Scalar) else None
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    if "text_config" in table.values:
        raise SuiteError(
            f"{path}:{table.lines['text_config']}: text_config is a part of a model of more than text, and the models "
            "here are decoders of text.\nhint: put what it has into a file of its own"
        )
    why = _OTHERS.get(name, "") if isinstance(name, str) else ""
    allowed = f"Allowed: {', '.join(KINDS)}."
    raise SuiteError(
        f"{path}:{node.line if node is not None else table.line}: model_type {as_yaml(name)}: "
        f"{why or 'it is not known whether its layers are those of the models here'}. {allowed}\n"
        "hint: a mapping of its numbers (num_layers, hidden_size, ...) is run without what is special about it"
    )


def _check(key: str, node: Node, line: int, path: str, known: set[str]) -> None:
    """Refuses a key that is not ours, and a value that asks for what is not here."""
    if key in ("rope_scaling", "rope_parameters", "model_type", *IGNORED):
        return
    if key in ONLY:
        allowed, why = ONLY[key]
        if not isinstance(node, Scalar) or not any(_same(node.value, value) for value in allowed):
            can = f"Allowed: {' or '.join(map(_as_json, allowed))}." if allowed else "Take it out."
            raise SuiteError(f"{path}:{line}: {key} is {_shown(node)}, and {why}. {can}")
    elif key == "layer_types":
        kinds = node.items if isinstance(node, Items) else (node,)
        if other := [each for each in kinds if not isinstance(each, Scalar) or each.value != "full_attention"]:
            raise SuiteError(f"{path}:{line}: layer_types has {_shown(other[0])}, and {_WINDOW}: full_attention.")
    elif key == "architectures":
        heads = node.items if isinstance(node, Items) else (node,)
        if other := [head for head in heads if not isinstance(head, Scalar) or not head.text.endswith("ForCausalLM")]:
            raise SuiteError(f"{path}:{line}: architectures has {_shown(other[0])}; a decoder's end with ForCausalLM.")
    elif key not in known:
        every = {*known, *ONLY, *IGNORED}
        raise SuiteError(
            f"{path}:{line}: key {as_yaml(key)} is not known here, and may change the model.{nearest(key, every)}\n"
            "hint: take it out if it changes neither weights nor what is computed of them"
        )
    elif not isinstance(node, Scalar):
        raise SuiteError(f"{path}:{line}: {key} must be one value, not {_shown(node)}.")


def _rope(table: Table, path: str) -> Iterator[tuple[str, Node]]:
    """What stands below ``rope_parameters``, as transformers 5 writes it, in the place of keys of the config."""
    for outer in ("rope_scaling", "rope_parameters"):
        if outer not in table.values:
            continue
        node, line = table.values[outer], table.lines[outer]
        if isinstance(node, Scalar) and node.value is None:
            continue
        inner = node.values if isinstance(node, Table) else {}
        kind = inner.get("rope_type") or inner.get("type")
        if outer == "rope_scaling" or kind is not None:
            name = kind.value if isinstance(kind, Scalar) else None
            if name not in ROPE_TYPES:
                told = f"{outer} has the type {as_yaml(name)}"
                raise SuiteError(f"{path}:{line}: {told}. Allowed, as none changes the work: {', '.join(ROPE_TYPES)}.")
        for key in _OF_ROPE:
            if key in inner:
                _check(key, inner[key], line, path, {*_OF_ROPE})
                yield key, inner[key]


def _same(given: Value, allowed: Value) -> bool:
    """Whether two values are one; false is not 0."""
    return given == allowed and isinstance(given, bool) == isinstance(allowed, bool)


def _as_json(value: Value) -> str:
    return "null" if value is None else as_yaml(value)


def _shown(node: Node) -> str:
    return _as_json(node.value) if isinstance(node, Scalar) else "a list" if isinstance(node, Items) else "a mapping"
