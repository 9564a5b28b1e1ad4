"""What columns, models and empty cells of published tables are in our words, where the meaning is certain."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Meaning(NamedTuple):
    """Our column, and what its numbers are multiplied with to be in our unit.

    Attributes
    ----------
    said
        What the name says beside: of memory which of it, of FLOP/s how they were counted.
    order
        Of a column of degrees, which of them its cells have, one after the other.
    """

    column: str
    factor: float = 1.0
    said: str = ""
    order: tuple[str, ...] = ()


_AXES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "ep": "expert"}
_WAYS = ("{} size", "{} degree", "{} ranks", "num {} ranks")
_WAYS_IN_WORDS = tuple(
    f"{{}} {which}parallel{how}" for which in ("", "model ") for how in ("", "ism", " size", " degree", "ism degree")
)
_PER_GPU = tuple(
    f"{what} s {whom}" for what in ("tokens", "token", "tok", "toks") for whom in ("gpu", "device", "chip")
)
_STEP_TIMES = (
    *("step time", "time step", "iteration time", "time iteration", "iter time", "time iter", "time global step"),
    *("elapsed time iteration", "average step time", "avg step time", "mean step time", "median step time"),
)

_BY_COLUMN: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        "gpu type",
        "gpu model",
        "accelerator",
        "accelerator type",
        "hardware",
        "system",
        "gpu name",
        "device type",
    ),
    "gpus": (
        "num gpus",
        "num gpu",
        "num accelerators",
        "world size",
        "ngpus",
        "gpu count",
        "total gpus",
        "num devices",
    ),
    "gpus_per_node": ("gpus per node", "num gpus per node", "devices per node"),
    "num_nodes": ("nodes", "num nodes", "n nodes", "nnodes", "node count"),
    "layers": ("num layers", "n layers", "n layer", "num hidden layers", "num transformer layers"),
    "hidden": ("hidden size", "hidden dim", "hidden dimension", "d model", "model dim"),
    "ffn": (
        *("ffn hidden size", "intermediate size", "ffn size", "ffn dim", "d ff", "mlp hidden size"),
        *("feed forward size", "ffn hidden dim"),
    ),
    "heads": ("attention heads", "num attention heads", "num heads", "n heads", "n head", "attn heads", "query heads"),
    "kv_heads": ("kv heads", "num key value heads", "num kv heads", "num query groups", "key value heads"),
    "vocab": ("vocab size", "vocabulary size", "vocabulary"),
    "seq": (
        *("sequence length", "seq length", "seq len", "seqlen", "seqlen t", "num tokens per sequence", "sequence len"),
        *("context length", "context len", "ctx len", "ctx length", "max seq len", "max sequence length"),
        *("max seq length", "context size", "sequence length tokens", "seq length tokens", "context length tokens"),
    ),
    "mbs": (
        *("micro batch size", "micro batch", "micro bs", "per device train batch size", "batch size micro"),
        *("micro batch size gpu", "micro batch size device", "micro batch size sequences"),
    ),
    "gbs": (
        *("global batch size", "global batch", "global bs", "global batch size sequences", "global batch size seqs"),
        *("global batch size samples", "batch size global", "gbs seqs", "gbs sequences", "gbs samples"),
    ),
    **{
        axis: (*(how.format(axis) for how in _WAYS), *(how.format(word) for how in _WAYS_IN_WORDS))
        for axis, word in _AXES.items()
    },
    "vpp": ("vp", "vp size", "vpp size", "virtual pipeline parallel size", "virtual pipeline size", "model chunks"),
    "sp": ("sequence parallel", "sequence parallelism", "tp sp"),
    "zero": ("zero stage", "sharding strategy", "shard strategy", "zero optimization stage", "fsdp strategy"),
    "fsdp": ("fsdp degree", "fsdp size", "fsdp ranks"),
    "shard_group_size": (
        *("dp shard", "dp shard degree", "dp shard size", "data parallel shard degree", "data parallel shard size"),
        *("hsdp shard size", "hsdp shard degree", "sharding group size", "shard size"),
    ),
    "dp_replicate": (
        *("dp replicate degree", "dp replicas", "data parallel replicate degree", "num replicas", "replicas"),
        *("hsdp replicas", "replicate degree"),
    ),
    "ga": (
        *("grad accum", "grad acc", "gradient accumulation", "gradient accumulation steps", "accumulation steps"),
        *("num gradient accumulations", "grad accum steps", "grad acc steps", "ga steps", "gas"),
        *("num micro batches", "micro batches", "gradient accumulations"),
    ),
    "checkpointing": (
        *("activation checkpointing", "activation checkpoint", "act ckpt", "act checkpointing", "activation ckpt"),
        *("gradient checkpointing", "grad ckpt", "grad checkpointing"),
    ),
    "recompute": ("recomputation", "activation recomputation", "activation recompute", "recompute granularity"),
    "precision": ("dtype", "data type", "compute dtype", "training precision"),
    "step_s": (*(f"{words} s" for words in _STEP_TIMES), "s step", "s iter", "s iteration", "s it"),
    "tokens_per_s_per_gpu": (
        *_PER_GPU,
        *("tokens gpu s", "token gpu s", "tok gpu s", "tps gpu", "tps device", "wps gpu", "throughput t s gpu", "tgs"),
        *(f"throughput {words}" for words in _PER_GPU),
        *("tgs tokens gpu s", "throughput gpu tokens s", "throughput token gpu s", "throughput tokens gpu s"),
    ),
    "tokens_per_s_of_all": (
        *(f"{all} {what} s" for all in ("total", "aggregate", "global", "cluster") for what in ("tokens", "tok")),
        *("total throughput tokens s", "aggregate throughput tokens s", "tokens s total", "total tps"),
    ),
    "tflops_per_gpu": (
        *("model tflop s gpu", "model tflops s gpu", "model tflops gpu", "tflop s gpu", "tflops s gpu", "tflops gpu"),
        *("tflops device", "tflop s device", "tflop gpu", "teraflops gpu", "teraflop s gpu", "achieved tflops gpu"),
        *("achieved tflop s gpu", "throughput tflops gpu", "throughput tflop s gpu"),
    ),
    "mfu": ("bf16 mfu", "model flops utilization", "model flop utilization", "model flops utilisation"),
    "dp_overlap": ("overlap grad reduce", "overlap grad sync"),
    "reduce_dtype": ("grad reduce dtype", "gradient reduce dtype", "reduction dtype", "grad comm dtype"),
    "layout": (
        *("parallelism", "parallel strategy", "parallelism strategy", "parallel config", "parallel configuration"),
        *("parallelization", "parallelisation", "parallel layout"),
    ),
    "flops_convention": ("flops formula", "flop count"),
}
_OF_OTHER_UNITS: Mapping[str, Meaning] = {
    **{f"{words} ms": Meaning("step_s", 1e-3) for words in _STEP_TIMES},
    **dict.fromkeys(("ms step", "ms iter", "ms iteration"), Meaning("step_s", 1e-3)),
    "num params": Meaning("params_b", 1e-9),
    **dict.fromkeys(
        (
            "num params b",
            "num parameters b",
            "params b",
            "parameters b",
            "num parameters billion",
            "parameters billion",
            "params billion",
            "model size b",
        ),
        Meaning("params_b", 1.0),
    ),
    **{
        f"{words} percent": Meaning("mfu", 0.01)
        for words in ("mfu", "bf16 mfu", "model flops utilization", "model flop utilization")
    },
    **dict.fromkeys(("params m", "parameters m", "num params m", "parameters million"), Meaning("params_b", 1e-3)),
    # Narayanan et al. 2021, table 1: what is computed again is counted
    "achieved teraflop s gpu": Meaning("tflops_per_gpu", 1.0, "megatron"),
    **dict.fromkeys(
        ("hardware tflops gpu", "hardware tflop s gpu", "hardware tflops s gpu"),
        Meaning("tflops_per_gpu", 1.0, "megatron"),
    ),
}
_RESULTS = (
    *("hfu", "hfu percent", "hardware flops utilization", "hardware flops utilization percent", "speedup", "speed up"),
    *(
        "throughput s s",
        "samples s",
        "samples s gpu",
        "sequences s",
        "throughput t s",
        "tokens s",
        "throughput tokens s",
    ),
    *(
        "percent peak",
        "percent theoretical peak",
        "percentage theoretical peak flop s",
        "achieved aggregate petaflop s",
        "scaling efficiency",
        "efficiency",
    ),
    *("loss", "train loss", "val loss", "final loss"),
    *("notes", "comment", "comments", "remark", "remarks", "run", "run id", "id", "date", "link", "url", "trace"),
    *("profile trace", "reference", "paper", "training time days", "framework"),
)
"""What was measured beside, of which a price has no use, and words; tokens/s may be those of a GPU or of all."""


def _tokens(words: str) -> list[str]:
    parts = re.findall(r"[a-z0-9]+|[#%]", words.lower().replace("*", ""))
    same = {"#": "num", "%": "percent", "number": "num", "no": "num", "sec": "s", "secs": "s", "second": "s"}
    same |= {"seconds": "s", "per": "", "of": ""}
    return [same.get(part, part) for part in parts]


def _letters(words: str) -> str:
    """A column's name without what people write differently: capitals, spaces, signs, *per* and *of*.

    >>> _letters("# of GPUs"), _letters("Tokens / sec / GPU"), _letters("MicroBatchSize"), _letters("MFU (%)")
    ('numgpus', 'tokenssgpu', 'microbatchsize', 'mfupercent')
    """
    return "".join(_tokens(words))


def _named(column: str, names: Iterable[str]) -> Iterator[str]:
    """Names of a column, and its own, in which nobody need write the underscores; but *Steps* are no ``step_s``."""
    yield from names
    if column != "step_s":
        yield column


_MEANINGS: Mapping[str, Meaning] = {
    **{_letters(words): Meaning(column) for column, names in _BY_COLUMN.items() for words in _named(column, names)},
    **{_letters(words): meaning for words, meaning in _OF_OTHER_UNITS.items()},
}
_ASIDE = frozenset(map(_letters, _RESULTS))

OF_MEMORY: Mapping[str, float] = {"gb": 1.0, "gib": 2**30 / 1e9, "mb": 1e-3, "mib": 2**20 / 1e9}
"""Units of memory in GB."""
_SHARE = "percent"
OF_THE_CARD = "of the card"
"""What is said of a column of memory in percent."""
_KINDS_OF_MEMORY = ("reserved", "allocated", "active")
_ABOUT_MEMORY = {
    *(
        "peak",
        "max",
        "maximum",
        "gpu",
        "cuda",
        "device",
        "used",
        "usage",
        "footprint",
        "consumption",
        "",
        "hbm",
        "vram",
    ),
    *("memory", "mem", *_KINDS_OF_MEMORY),
}


def _kind_of_memory(tokens: Iterable[str]) -> str:
    return next((kind for kind in _KINDS_OF_MEMORY if kind in tokens), "")


def _memory(header: str) -> Meaning | None:
    """Of a column of memory with one unit, and which memory it is.

    >>> _memory("Peak reserved mem. (GiB)").said, _memory("Memory"), _memory("memory bandwidth (GB/s)")
    ('reserved', None, None)
    """
    tokens = _tokens(header)
    units = [token for token in tokens if token in OF_MEMORY or token == _SHARE]
    words = {token for token in tokens if token not in units}
    if len(units) != 1 or not words & {"memory", "mem", "hbm", "vram"} or not words <= _ABOUT_MEMORY:
        return None
    said = _kind_of_memory(tokens)
    if units == [_SHARE]:
        return Meaning("mem_gb", 0.01, f"{said} {OF_THE_CARD}".strip())
    return Meaning("mem_gb", OF_MEMORY[units[0]], said)


def is_memory(header: str) -> bool:
    """Whether a name is of memory and says no unit, so that its cells must."""
    words = {*_tokens(header)}
    return not words.isdisjoint(("memory", "mem", "hbm", "vram")) and words <= _ABOUT_MEMORY


def of_memory(header: str) -> Meaning:
    """What such a column is where its cells say their units."""
    return Meaning("mem_gb", said=_kind_of_memory(_tokens(header)))


_WITH_UNIT_OF_MEMORY = re.compile(r"[0-9][0-9.,]{0,20} ?(?:[gm]i?b)", re.IGNORECASE)


def has_units_of_memory(cells: Sequence[str]) -> bool:
    """Whether every cell in which something was measured says its unit.

    >>> has_units_of_memory(["65 GB", "OOM", "70GiB"]), has_units_of_memory(["65", "70 GB"]), has_units_of_memory(["-"])
    (True, False, False)
    """
    measured = [cell for cell in cells if cell and cell.lower() not in NOT_MEASURED]
    return bool(measured) and all(map(_WITH_UNIT_OF_MEMORY.fullmatch, measured))


_DEGREES = frozenset(("tp", "pp", "dp", "cp", "ep", "vpp"))


def _merged(header: str) -> Meaning | None:
    """Of a column whose cells have several degrees, in the order of its name."""
    order = tuple(token for token in re.split(r"[^a-z]+|(?<=p)x(?=[a-z])", header.lower()) if token and token != "x")
    if len(order) > 1 and set(order) <= _DEGREES and len(set(order)) == len(order):
        return Meaning("layout", order=order)
    return None


def meaning_of(header: str) -> Meaning | None:
    """What a published column is in ours; None where that is not certain.

    >>> meaning_of("#-GPUs").column, meaning_of("Memory(GiB)").factor, meaning_of("Local batch size")
    ('gpus', 1.073741824, None)
    >>> meaning_of("Peak reserved mem. (GiB)").said, meaning_of("TP x PP x DP").order
    ('reserved', ('tp', 'pp', 'dp'))
    """
    return _MEANINGS.get(_letters(header)) or _memory(header) or _merged(header)


_OF_TOKENS = "tokens_per_s_per_gpu where it is of one GPU, tokens_per_s_of_all where it is of all"
_UNSURE: Mapping[str, str] = {
    **dict.fromkeys(
        ("batch size", "batch", "bs", "bsz", "batchsize"),
        "gbs where it is of a step of all ranks, mbs where it is of a micro-batch",
    ),
    **dict.fromkeys(
        (
            *("local batch size", "batch size per gpu", "bs gpu", "batch gpu", "batch size gpu", "local bs"),
            *("batch size device", "per device batch size", "lbs", "batch size dp", "batch size dp rank", "batch dp"),
        ),
        "mbs where a step has one micro-batch; gbs is it times dp",
    ),
    **dict.fromkeys(
        ("global batch size tokens", "global batch tokens", "batch size tokens", "tokens step", "tokens batch"),
        "gbs, divided by seq: gbs counts sequences",
    ),
    **dict.fromkeys(("wps", "tps", "words s", "throughput"), _OF_TOKENS),
    **dict.fromkeys(
        ("memory", "mem", "peak memory", "peak mem", "max memory", "gpu memory", "memory usage"),
        "mem_gb where it is in GB, 'memory (GiB)' where it is in GiB",
    ),
    **dict.fromkeys(
        ("time", *_STEP_TIMES), "step_s where it is of a step, in seconds; 'step time (ms)' where it is in milliseconds"
    ),
    **dict.fromkeys(
        ("model size", "size", "params", "parameters", "num parameters"),
        "model where it names a model, params_b where it counts parameters in billions",
    ),
    **dict.fromkeys(
        ("tflops", "tflop s", "flops", "teraflops", "model tflops"), "tflops_per_gpu where it is of one GPU, in TFLOP/s"
    ),
    **dict.fromkeys(("ctx", "context", "seqs", "sequence"), "seq where it counts the tokens of a sequence"),
    **dict.fromkeys(("devices", "num chips", "chips", "ranks"), "gpus where it counts them all"),
    **dict.fromkeys(("ac", "checkpoint"), "checkpointing where it says what backward computes again"),
    **dict.fromkeys(("strategy", "config", "configuration", "setup", "techniques"), "layout where it says tp4-pp2"),
    **dict.fromkeys(
        ("it s", "iter s", "iterations s", "its s", "steps s", "speed iter s", "speed it s"),
        "step_s, and write one divided by it: seconds of a step",
    ),
    "step": "step_s where it is the time of a step, in seconds",
    "step s": "step_s where it is the time of a step, in seconds",
    **dict.fromkeys(("sharding", "dp type", "data parallelism type"), "zero where it says ZeRO-3, FULL_SHARD or HSDP"),
    **dict.fromkeys(("device", "devicetype", "chip", "processor"), "gpu where it names the card"),
    **dict.fromkeys(("interleaved", "interleaving", "virtual stages"), "vpp where it counts the chunks of a stage"),
    "mp": "tp where it is tensor parallelism alone",
    "model parallel size": "tp where it is tensor parallelism alone",
}
"""Columns that mean one thing in one publication and another in the next."""
_MAY_BE: Mapping[str, str] = {_letters(words): meanings for words, meanings in _UNSURE.items()}


def may_be(header: str) -> str | None:
    """What a published column that is not certain should be called, by what it is; None of all others.

    >>> may_be("Batch Size")
    'gbs where it is of a step of all ranks, mbs where it is of a micro-batch'
    """
    return _MAY_BE.get(_letters(header))


SHORT = 3
"""Letters of a name that is like too many."""


def hint_for(header: str) -> str:
    """What to do with a column that is not known: what it may be called, or the nearest name that is known.

    >>> hint_for("activation checkpoiting")
    "call it checkpointing if it is that, as 'activation checkpointing' is"
    >>> hint_for("dropout")
    'take it out if it changes nothing of what ran'
    """
    if (meanings := may_be(header)) is not None:
        return f"call it {meanings}"
    written = {_letters(words): words for names in _BY_COLUMN.values() for words in names}
    columns = {_letters(column): column for column in _BY_COLUMN}
    letters = _letters(header)
    if len(letters) > SHORT and (
        near := difflib.get_close_matches(letters, [*columns, *written, *_MAY_BE], n=1, cutoff=0.8)
    ):
        (found,) = near
        if found in columns:
            return f"call it {columns[found]} if it is that"
        if found in written:
            return f"call it {_MEANINGS[found].column} if it is that, as {written[found]!r} is"
        return f"call it {_MAY_BE[found]}"
    tokens = set(_tokens(header))
    about = next((meanings for words, meanings in _ABOUT.items() if tokens & words), "")
    return f"call it {about}" if about else "take it out if it changes nothing of what ran"


_ABOUT: Mapping[frozenset[str], str] = {
    frozenset(("throughput", "tokens", "token", "tok", "speed")): _UNSURE["throughput"],
    frozenset(("tflops", "tflop", "teraflops", "teraflop", "flops")): _UNSURE["tflops"],
    frozenset(("memory", "mem", "hbm", "vram")): _UNSURE["memory"],
    frozenset(("batch", "bs", "batchsize")): _UNSURE["batch"],
    frozenset(("time", "duration", "latency")): _UNSURE["time"],
    frozenset(("gpus", "accelerators", "devices")): _UNSURE["devices"],
    frozenset(("checkpointing", "recompute", "checkpoint", "remat")): _UNSURE["checkpoint"],
    frozenset(("parameters", "params", "model")): _UNSURE["params"],
    frozenset(("length", "context", "sequence")): _UNSURE["context"],
}
"""What a column with one of these words may be, where its name is like no other."""


def is_result(header: str) -> bool:
    """Whether a column is something measured that says nothing of what ran, or a remark."""
    is_extrapolated = not {"est", "estimated", "predicted", "projected"}.isdisjoint(_tokens(header))
    return is_extrapolated or _letters(header) in _ASIDE


SPEEDS = ("step_s", "tokens_per_s_per_gpu", "tokens_per_s_of_all")
_SPEEDS = frozenset(
    _letters(words)
    for words in ("tokens s", "throughput tokens s", "throughput t s", "samples s", "samples s gpu", "throughput s s")
)


def is_speed(header: str) -> bool:
    """Whether a column that is set aside is a speed, of which it is not certain what of."""
    return _letters(header) in _SPEEDS


NOT_SAID = frozenset(
    ("n/a", "na", "n.a.", "-", "--", "---", "–", "—", "?", "nan", "null", "tbd", "unknown", "not reported")
)
"""A cell in which a table has nothing to say."""

OUT_OF_MEMORY = frozenset(("oom", "out of memory", "cuda oom", "oom error", "cuda out of memory"))
NOT_MEASURED = NOT_SAID | OUT_OF_MEMORY | {"x", "✗", "✘", "fail", "failed", "crash", "crashed", "error", "timeout"}
"""A cell of a figure that was not measured."""

_MARK = re.compile(r"(?:\s*(?:\[\^?[0-9a-z]{1,2}\]|[*†‡§¶]+|[⁰¹²³⁴-⁹]+))+$")


def without_marks(text: str) -> str:
    """A cell or a header without the marks of footnotes at its end.

    >>> [without_marks(text) for text in ("3760*", "1[^1]", "50.5%†", "380 ²", "[1]", "OOM**", "2^22")]
    ['3760', '1', '50.5%', '380', '[1]', 'OOM', '2^22']
    """
    last = text[-1:]
    return text if last.isascii() and last.isalnum() else _MARK.sub("", text) or text


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
