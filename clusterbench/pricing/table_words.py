"""What columns, models and empty cells of published tables are in our words, where the meaning is certain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Meaning(NamedTuple):
    """Our column, and what its numbers are multiplied with to be in our unit."""

    column: str
    factor: float = 1.0


_BY_COLUMN: Mapping[str, tuple[str, ...]] = {
    "gpu": ("gpu type", "gpu model", "accelerator", "hardware", "system"),
    "gpus": ("num gpus", "num gpu", "num accelerators", "world size", "ngpus"),
    "gpus_per_node": ("num gpus per node",),
    "layers": ("num layers", "n layers", "num hidden layers"),
    "hidden": ("hidden size", "d model"),
    "ffn": ("ffn hidden size", "intermediate size", "ffn size", "ffn dim"),
    "heads": ("attention heads", "num attention heads", "num heads", "n heads"),
    "kv_heads": ("num key value heads", "num kv heads", "num query groups"),
    "vocab": ("vocab size", "vocabulary size", "vocabulary"),
    "seq": ("sequence length", "seq length", "seq len", "seqlen", "seqlen t", "num tokens per sequence"),
    "mbs": ("micro batch size",),
    "gbs": ("global batch size",),
    "tp": ("tp size", "tensor parallel", "tensor parallel size", "tensor model parallel size"),
    "pp": ("pp size", "pipeline parallel", "pipeline parallel size", "pipeline model parallel size"),
    "dp": ("dp size", "data parallel", "data parallel size"),
    "cp": ("cp size", "context parallel", "context parallel size"),
    "ep": ("ep size", "expert parallel", "expert parallel size", "expert model parallel size"),
    "vpp": ("vp", "vp size", "vpp size", "virtual pipeline parallel size", "virtual pipeline size"),
    "sp": ("sequence parallel", "sequence parallelism"),
    "zero": ("zero stage", "sharding strategy", "shard strategy"),
    "ga": ("grad accum", "gradient accumulation", "gradient accumulation steps", "num gradient accumulations"),
    "checkpointing": ("activation checkpointing", "act ckpt", "gradient checkpointing"),
    "precision": ("dtype", "data type"),
    "step_s": ("step time s", "time per step s", "iteration time s", "time per iteration s", "time per global step s"),
    "tokens_per_s_per_gpu": ("tokens s gpu", "tokens gpu s", "tok s gpu", "tps gpu", "throughput t s gpu", "tgs"),
    "tflops_per_gpu": (
        "model tflop s gpu",
        "model tflops s gpu",
        "tflop s gpu",
        "tflops s gpu",
        "tflops gpu",
        "achieved teraflop s gpu",
    ),
    "mfu": ("bf16 mfu", "model flops utilization"),
    "mem_gb": ("memory gb", "peak memory gb"),
}
_OF_OTHER_UNITS: Mapping[str, tuple[str, float]] = {
    "step time ms": ("step_s", 1e-3),
    "time per step ms": ("step_s", 1e-3),
    "iteration time ms": ("step_s", 1e-3),
    "time per iteration ms": ("step_s", 1e-3),
    "elapsed time per iteration ms": ("step_s", 1e-3),
    "memory gib": ("mem_gb", 2**30 / 1e9),
    "peak memory gib": ("mem_gb", 2**30 / 1e9),
    "num params": ("params_b", 1e-9),
    "params b": ("params_b", 1.0),
    "parameters b": ("params_b", 1.0),
    "num parameters billion": ("params_b", 1.0),
    "parameters billion": ("params_b", 1.0),
    "model size b": ("params_b", 1.0),
}
_RESULTS = ("hfu", "hardware flops utilization", "throughput s s", "samples s", "throughput t s", "tokens s", "speedup")
"""What was measured beside, of which a price has no use; tokens/s may be those of a GPU or of all."""


def _letters(words: str) -> str:
    """A column's name without what people write differently: capitals, spaces, signs, *per* and *of*.

    >>> _letters("# of GPUs"), _letters("Tokens / sec / GPU"), _letters("MicroBatchSize")
    ('numgpus', 'tokenssgpu', 'microbatchsize')
    """
    parts = re.findall(r"[a-z0-9]+|#", words.lower().replace("*", ""))
    same = {"#": "num", "number": "num", "sec": "s", "second": "s", "seconds": "s", "per": "", "of": ""}
    return "".join(same.get(part, part) for part in parts)


_MEANINGS: Mapping[str, Meaning] = {
    **{_letters(words): Meaning(column) for column, names in _BY_COLUMN.items() for words in names},
    **{_letters(words): Meaning(*meaning) for words, meaning in _OF_OTHER_UNITS.items()},
}
_ASIDE = frozenset(map(_letters, _RESULTS))


def meaning_of(header: str) -> Meaning | None:
    """What a published column is in ours; None where that is not certain.

    >>> meaning_of("#-GPUs"), meaning_of("Memory(GiB)").factor, meaning_of("Local batch size")
    (Meaning(column='gpus', factor=1.0), 1.073741824, None)
    """
    return _MEANINGS.get(_letters(header))


_UNSURE: Mapping[str, str] = {
    **dict.fromkeys(
        ("batch size", "batch", "bs"), "gbs where it is of a step of all ranks, mbs where it is of a micro-batch"
    ),
    **dict.fromkeys(
        ("local batch size", "batch size per gpu"), "mbs where a step has one micro-batch; gbs is it times dp"
    ),
    "throughput": "tokens_per_s_per_gpu where it is of one GPU",
    "memory": "mem_gb where it is in GB, 'memory (GiB)' where it is in GiB",
    "time": "step_s where it is of a step, in seconds",
}
"""Columns that mean one thing in one publication and another in the next."""
_MAY_BE: Mapping[str, str] = {_letters(words): meanings for words, meanings in _UNSURE.items()}


def may_be(header: str) -> str | None:
    """What a published column that is not certain should be called, by what it is; None of all others.

    >>> may_be("Batch Size")
    'gbs where it is of a step of all ranks, mbs where it is of a micro-batch'
    """
    return _MAY_BE.get(_letters(header))


def is_result(header: str) -> bool:
    """Whether a column is something measured that says nothing of what ran."""
    return _letters(header) in _ASIDE


NOT_SAID = frozenset(("n/a", "na", "-", "–", "—"))
"""A cell in which a table has nothing to say."""

_ON_RECORD: Mapping[str, str] = {
    **dict.fromkeys(("llama38b", "llama318b"), "llama-8b"),
    **dict.fromkeys(("llama370b", "llama3170b", "llama3370b"), "llama-70b"),
    **dict.fromkeys(("llama3405b", "llama31405b"), "llama-405b"),
    "llama321b": "llama-1b",
    "llama323b": "llama-3b",
    **{f"llama2{size}": f"llama2-{size}" for size in ("7b", "13b", "70b")},
    # of these sizes there is none of another generation with other numbers
    **{f"llama{size}": f"llama1-{size}" for size in ("7b", "13b", "30b", "65b")},
    "llama33b": "llama1-30b",
    "codellama34b": "codellama-34b",
    "mistral7b": "mistral-7b",
    **{f"gpt3{size.replace('.', '')}": f"gpt3-{size}" for size in ("1.3b", "6.7b", "13b", "175b")},
}
"""Models that their publisher writes with a version. Llama 3, 3.1 and 3.3 of one size have the same numbers."""

_OF_A_CHECKPOINT = re.compile(r"[-_ ](?:hf|base|instruct|chat|v\d(?:\.\d)?)$")


def name_on_record(model: str) -> str:
    """The name of a model on record that a table's model may have.

    >>> [name_on_record(words) for words in ("LLAMA3_70B", "meta-llama/Llama-3.1-405B", "Mixtral 8x7B", "LLAMA2-7B")]
    ['llama-70b', 'llama-405b', 'mixtral-8x7b', 'llama2-7b']
    """
    words = model.lower().rpartition("/")[2].removeprefix("meta-").removeprefix("meta ").strip()
    while (shorter := _OF_A_CHECKPOINT.sub("", words)) != words:
        words = shorter
    letters = re.sub(r"[^a-z0-9]", "", words)
    return _ON_RECORD.get(letters, re.sub(r"[\s_]+", "-", words))


_OF_EXPERTS = re.compile(
    r"\d+x\d+(?:\.\d+)?b\b|\ba\d+(?:\.\d+)?b\b|moe\b|\bmoe|deepseek[- ]?[vr][1-9]|gpt[- ]?oss", re.IGNORECASE
)


def names_experts(model: str) -> bool:
    """Whether a model's name says that it is a mixture of experts.

    >>> [names_experts(words) for words in ("Mixtral 8x7B", "Qwen3_30B_a3B", "OLMoE-1B-7B", "DeepSeekV3", "GPT3-175B")]
    [True, True, True, True, False]
    """
    return _OF_EXPERTS.search(model.replace("_", "-")) is not None
