"""What one H200 should show, written down before any run on one, and how each figure follows.

Sources are named where there are any; everything else is arithmetic from them, and says so. Speeds are of that card
alone: other cards, CPU ranks and ranks that share a card have none. What a plan expects is a prediction as well, and
holds on any device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from clusterbench.formulas.statistics import SETTLED_WITHIN
from clusterbench.formulas.transformer import model_flops_per_token
from clusterbench.job.flops import CAUSAL_ATTENTION
from clusterbench.job.passes import Executed
from clusterbench.precision import MASTER
from clusterbench.shape import named_shape
from clusterbench.units import format_value
from tests.gpu import ABOVE, AS_PREDICTED, BELOW, SHOWN, Row

GPU = "NVIDIA H200"
PEAK_FLOPS_PER_S = 989e12  # bfloat16, dense: the data sheet's


@dataclass(frozen=True)
class Prediction:
    """From ``low`` to ``high``, in ``unit``; ``why`` is how it follows."""

    low: float
    high: float
    unit: str
    why: str

    @property
    def words(self) -> str:
        if self.high == float("inf"):
            return f"at least {format_value(self.low, self.unit)}"
        if self.high == self.low:
            return format_value(self.low, self.unit)
        return f"{format_value(self.low, self.unit)} to {format_value(self.high, self.unit)}"

    def times(self, factor: float, unit: str, why: str) -> Prediction:
        return Prediction(factor * self.low, factor * self.high, unit, f"{why}; {self.why}")


def judged(name: str, value: float, unit: str, prediction: Prediction | None = None, note: str = "") -> Row:
    """The row of a figure. What it was predicted from stands in its note."""
    shown = format_value(value, unit)
    if prediction is None:
        return Row(name, shown, "", SHOWN, note)
    verdict = BELOW if value < prediction.low else ABOVE if value > prediction.high else AS_PREDICTED
    return Row(name, shown, prediction.words, verdict, "; ".join(filter(None, (note, prediction.why))))


# The ladder

STEP = {"shape": "llama-8b", "layout": "tp1", "seq_len": 4096, "global_batch_size": 8, "dtype": "bfloat16"}
"""The step that the speeds below are of: 8 micro-batches of one sequence on one card."""

_ANCHOR = (
    "estimate: KempnerForge reaches 10,471 tokens/s of this shape on one H200, compiled, recomputed, all in bfloat16; "
    "float32 weights and states leave 79 to 88 % of that, with the weights rounded once a step and their gradients in "
    "bfloat16 added to those in float32"
)
_EAGER = f"{_ANCHOR}, and without a compiler 61 to 70 %"
_NONE = (
    "recomputation executes 23 % more FLOPs by the plan's count, and an eighth of the step does not shrink without "
    "(copies, clipping, optimizer): 17 to 20 % more tokens; "
)
_SELECTIVE = "2 to 4 % below no recomputation, as elementwise operators run twice; "

_CHUNKS = "the same FLOPs, and logits that pass through memory less often: 0 to 2 % more; "
_TWO_SEQUENCES = "matrices of 8,192 rows: 2 to 4 % more; "
_CUDNN = "attention is 8 % of the FLOPs, and cuDNN's kernel at most twice as fast: 0 to 5 % more; "


class Rung(NamedTuple):
    """A way to do :data:`STEP`: the options that are not the same in all."""

    recompute: str
    compile: bool = False
    micro_batch_size: int = 1
    loss_chunks: int = 1
    attention_backend: str = "auto"
    precision: str = MASTER
    float8: str = "none"

    @property
    def words(self) -> str:
        """``full compiled 2 sequences 8 chunks cudnn``."""
        parts = (
            self.recompute,
            "compiled" if self.compile else "",
            f"{self.micro_batch_size} sequences" if self.micro_batch_size > 1 else "",
            f"{self.loss_chunks} chunks" if self.loss_chunks > 1 else "",
            self.attention_backend if self.attention_backend != "auto" else "",
            self.precision if self.precision != MASTER else "",
            f"float8 {self.float8}" if self.float8 != "none" else "",
        )
        return " ".join(filter(None, parts))


def rung_of(point: Mapping[str, Any]) -> Rung:
    return Rung(**{name: point[name] for name in Rung._fields if name in point})


def words_of(point: Mapping[str, Any]) -> str:
    """What the table calls a rung; options of later ones stand behind it."""
    others = [f"{name}={point[name]}" for name in sorted(point.keys() - KNOWN_OPTIONS)]
    return " ".join((rung_of(point).words, *others))


_AS_MADE = "within 5 % of the 10,471 tokens/s that KempnerForge reaches in this very way on one H200"
_PURE_NONE = f"estimate: {_NONE}{_AS_MADE}, taken to 3 %"
_PURE = "pure_bfloat16"

_FLOAT8 = (
    "estimate: torchao and torchtitan report 1.25 to 1.34 times the tokens of bfloat16 for such layers, head and "
    "attention left as they are; "
)
_BY_ROW = "with a scale for each row 5 to 8 % fewer; "

_MOMENTS = "bfloat16_moments"
_ADDED = (
    "estimate: the step of 2026-11-26 in pure bfloat16 took {as_pure}; gradients added in float32 pass 80 GB a "
    "micro-batch, rounding 48, clipping 32 and the optimizer 50 more a step, of 4.2 TB/s: {more}"
)

TOKENS_PER_S = {
    Rung("full", True, 2, precision=_PURE): Prediction(9950, 11000, "tokens/s", _AS_MADE),
    Rung("none", True, 2, precision=_PURE): Prediction(12000, 12900, "tokens/s", _PURE_NONE),
    Rung("none", True, 2, 8, precision=_PURE): Prediction(12000, 13150, "tokens/s", _CHUNKS + _PURE_NONE),
    Rung("none", True, 2, 8, precision=_PURE, float8="tensorwise"): Prediction(
        15000, 17400, "tokens/s", _FLOAT8 + _CHUNKS + _PURE_NONE
    ),
    Rung("none", True, 2, 8, precision=_PURE, float8="rowwise"): Prediction(
        13800, 16500, "tokens/s", _BY_ROW + _FLOAT8 + _CHUNKS + _PURE_NONE
    ),
    Rung("none", True, 1, 8, precision=_MOMENTS): Prediction(
        10700,
        11800,
        "tokens/s",
        _ADDED.format(as_pure="2.63 s and in rows of 4,096 2 to 4 % more", more="0.18 s, to 2.91 s within 5 %"),
    ),
    Rung("full", True, 2, 8, precision=_MOMENTS): Prediction(
        9400,
        10250,
        "tokens/s",
        _ADDED.format(as_pure="3.16 s", more="0.11 s, to 3.3 s within 4 %"),
    ),
    Rung("full"): Prediction(6400, 7300, "tokens/s", _EAGER),
    Rung("full", True): Prediction(8300, 9200, "tokens/s", _ANCHOR),
    Rung("full", True, 1, 1, "cudnn"): Prediction(8300, 9650, "tokens/s", _CUDNN + _ANCHOR),
    Rung("full", True, 2, 8): Prediction(8500, 9800, "tokens/s", _TWO_SEQUENCES + _CHUNKS + _ANCHOR),
    Rung("selective"): Prediction(7150, 8600, "tokens/s", _SELECTIVE + _NONE + _EAGER),
    Rung("selective", True): Prediction(9300, 10800, "tokens/s", _SELECTIVE + _NONE + _ANCHOR),
    Rung("selective", True, 1, 8): Prediction(9300, 11000, "tokens/s", _CHUNKS + _SELECTIVE + _NONE + _ANCHOR),
    Rung("none"): Prediction(7500, 8750, "tokens/s", _NONE + _EAGER),
    Rung("none", True): Prediction(9700, 11000, "tokens/s", _NONE + _ANCHOR),
}
"""Not all of them fit: see :func:`outcome_of_rung`."""

KNOWN_OPTIONS = {
    *STEP,
    *Rung._fields,
    *("rank_order", "seed", "max_grad_norm", "parity", "gradient_accumulation_steps"),
    *("pp", "dp", "cp", "tp", "sp", "ep", "zero"),
}
"""Options that the speeds above are for. A point with another one is another rung, which needs its own."""


def tokens_per_s(gpu: str, point: Mapping[str, Any]) -> Prediction | None:
    """Of a training step; None of every step but the ladder's."""
    is_ladders = all(point.get(name) == value for name, value in STEP.items())
    if gpu != GPU or not is_ladders or point.keys() - KNOWN_OPTIONS:
        return None
    return TOKENS_PER_S.get(rung_of(point))


def mfu(gpu: str, point: Mapping[str, Any], convention: str) -> Prediction | None:
    """Over the peak of bfloat16, whatever is multiplied in less."""
    rate = tokens_per_s(gpu, point)
    flops = model_flops_per_token(named_shape(point["shape"]), point["seq_len"], convention)
    return rate and rate.times(flops / PEAK_FLOPS_PER_S, "fraction", "of 989 TFLOP/s, from tokens/s")


def executed_flops_per_s(gpu: str, point: Mapping[str, Any], by_kind: Mapping[str, float]) -> Prediction | None:
    """``by_kind`` are the FLOPs of a whole step, as the plan expects them; of causal attention half is done."""
    rate = tokens_per_s(gpu, point)
    tokens = point["seq_len"] * point["global_batch_size"]
    done = sum(flops / 2 if kind == CAUSAL_ATTENTION else flops for kind, flops in by_kind.items())
    return rate and rate.times(done / tokens, "FLOP/s", "FLOPs of the plan, from tokens/s")


COMPILED = Prediction(1, float("inf"), "1", "of each kind of layer one function at the least")
SETTLED = Prediction(0, SETTLED_WITHIN, "fraction", "where a warm-up ends; above it clocks had not settled in 10 s")
AGREEING = Prediction(0, 1, "1", "a share of the rounding that the dtype allows")

# Memory

CONTEXT_BYTES = (0.4e9, 1.6e9)
"""CUDA's context with the kernels of torch, cuBLAS and cuDNN, and their workspaces; an estimate."""


HELD_BYTES = {
    Rung("full", micro_batch_size=2, precision=_PURE): 79.1e9,
    Rung("none", micro_batch_size=2, precision=_PURE): 121.0e9,
    Rung("none", micro_batch_size=2, loss_chunks=8, precision=_PURE): 111.9e9,
    Rung("none", micro_batch_size=2, loss_chunks=8, precision=_PURE, float8="tensorwise"): 111.9e9,
    Rung("none", micro_batch_size=2, loss_chunks=8, precision=_PURE, float8="rowwise"): 111.9e9,
    Rung("none", loss_chunks=8, precision=_MOMENTS): 137.8e9,
    Rung("full", micro_batch_size=2, loss_chunks=8, precision=_MOMENTS): 118.2e9,
    Rung("full"): 152.0e9,
    Rung("full", micro_batch_size=2, loss_chunks=8): 150.3e9,
    Rung("selective"): 163.3e9,
    Rung("selective", loss_chunks=8): 161.4e9,
    Rung("none"): 172.9e9,
}
"""Most that a rung holds at once, uncompiled and with whichever kernel of attention.

Source: ``clusterbench run --dry suites/one_gpu.yaml --gpu 'NVIDIA H200' --gpus-per-node 1``, 2026-11-23.
"""
COMPILED_AWAY_BYTES = 8e9
"""What compiled layers may keep less for backward: 5 GB of 42 GB without recomputation, and some more; an estimate."""


def outcome_of_rung(gpu: str, point: Mapping[str, Any], card_bytes: float | None) -> str:
    """``ok`` or ``out_of_memory``; empty where neither follows: of another step, or of what is between the two."""
    rung = rung_of(point)
    held = HELD_BYTES.get(rung._replace(compile=False, attention_backend="auto"))
    if held is None or card_bytes is None or tokens_per_s(gpu, point) is None:
        return ""
    if held + CONTEXT_BYTES[1] < card_bytes:
        return "ok"
    least = held - (COMPILED_AWAY_BYTES if rung.compile else 0)
    return "out_of_memory" if least + CONTEXT_BYTES[0] > card_bytes else ""


TRACKED = Prediction(0.97, 1.03, "1", "the band of the plan's own formula")
ALLOCATED = Prediction(0.98, 1.02, "1", "the formula is of live tensors; the allocator rounds them up to 512 B")
DRY = Prediction(0.97, 1.03, "1", "formula and dry run are of the same step")
BEYOND_ALLOCATOR = Prediction(*CONTEXT_BYTES, "B", "estimate: CUDA's context, kernels of the libraries, workspaces")

# One rank of a layout, with nothing sent

COUNTED = Prediction(1, 1, "1", "operators and collectives are counted; formulas have them to the last digit")


def rank_time(gpu: str, executed: Sequence[Executed]) -> Prediction | None:
    """No more is known: nobody has published what a rank takes alone, and eager it may be the host that is slow."""
    flops = sum(each.flops / (2 if each.kind == CAUSAL_ATTENTION else 1) for each in executed)
    why = "the FLOPs of the rank at 989 TFLOP/s, of causal attention half; how much more it takes is unknown"
    return Prediction(flops / PEAK_FLOPS_PER_S, float("inf"), "s", why) if gpu == GPU else None


def compiled_over_eager(gpu: str) -> Prediction | None:
    """Of the time of one step."""
    why = "estimate: fewer and larger kernels, and under tp no DTensor that the host works through"
    return Prediction(0, 1, "1", why) if gpu == GPU else None


# Ceilings

_SEEN = "788 TFLOP/s were seen of ten products of 8192 x 8192 after three, 769 to 798 from run to run"
_BURST = Prediction(765e12, 810e12, "FLOP/s", _SEEN)
_SUSTAINED = Prediction(640e12, 780e12, "FLOP/s", f"estimate: 700 W hold 82 to 97 % of the burst; {_SEEN}")
_EIGHT_BITS = "estimate: 62 to 78 % of the data sheet's 1,979 TFLOP/s, where bfloat16 has 80 % of its own"
_BURST_8 = Prediction(1230e12, 1540e12, "FLOP/s", _EIGHT_BITS)
_SUSTAINED_8 = Prediction(1000e12, 1480e12, "FLOP/s", f"700 W hold 82 to 97 % of the burst; {_EIGHT_BITS}")
_COPY = Prediction(4.15e12, 4.45e12, "B/s", "4.3 TB/s were seen, read and written; memory is not limited by power")
_PCIE = Prediction(50e9, 58e9, "B/s", "55.6 GB/s of an H100, NVIDIA's blog on nvbandwidth; the same PCIe")


def ceiling(gpu: str, benchmark: str, point: Mapping[str, Any], metric: str) -> Prediction | None:
    """Of a product or a copy; ``burst_`` begins the names of metrics of the first of them."""
    if gpu != GPU:
        return None
    if benchmark == "matmul" and point.get("size") == 8192:
        of_dtype = {"bfloat16": (_SUSTAINED, _BURST), "float8": (_SUSTAINED_8, _BURST_8)}
        return of_dtype.get(point["dtype"], (None, None))[metric.startswith("burst_")]
    if benchmark == "device_copy" and point["operation"] == "copy":
        return _COPY
    return _PCIE if benchmark == "host_copy" and point["direction"] != "both" else None
