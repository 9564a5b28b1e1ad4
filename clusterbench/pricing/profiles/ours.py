"""clusterbench's own step, ``train_step`` with ``trainer: ours``: what its parallelisms say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from math import inf
from typing import ClassVar

from clusterbench.expected.flops import executed_by_rank
from clusterbench.expected.total import fullest_moment
from clusterbench.formulas.collectives import RECV
from clusterbench.formulas.schedules import splits_backward
from clusterbench.formulas.schedules.timeline import Bubble, bubble_formula, bubble_of_stages
from clusterbench.job import DTYPE_BYTES, TrainingJob, as_one, has_copy
from clusterbench.job.flops import ATTENTION, CAUSAL_ATTENTION
from clusterbench.layout import REPLICA, SHARD
from clusterbench.parallel import (
    Parallelism,
    Traffic,
    active_in,
    expected_states,
    from_options,
    objection_to,
    of_kind,
    part_of,
    traffic_of_step,
)
from clusterbench.parallel.context import ContextParallel
from clusterbench.parallel.data import DataParallel
from clusterbench.parallel.expert import ExpertParallel
from clusterbench.parallel.fsdp import ends_are_apart
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.precision import PRECISIONS
from clusterbench.pricing import PARTS
from clusterbench.pricing.profiles import BACKWARD, PricedJob, Profile, objection_to_options, reach, reach_of_shards
from clusterbench.pricing.work import Messages, StageWork, StepWork

OPERATORS_OF_A_LAYER, OPERATORS_COMPUTED_AGAIN, OPERATORS_OF_A_SLICE, OPERATORS_WITHOUT_COPIES = 63, 31, 10, 14
"""Of forward and backward of a layer; what recomputation adds, what a layer that is cut over tp adds, and what one adds
of whose weights there are no copies that were rounded once a step."""

KERNELS_OF_A_COMPILED_LAYER = 46
"""Of forward and backward: products, attention, and what is fused between them."""

OPERATORS_OF_THE_ENDS = 40
"""Of embedding, final norm, head and loss."""

OPERATORS_OF_CONTEXT: Mapping[str, tuple[int, int]] = {
    "ring": (21, 11),
    "zigzag": (21, 11),
    "all_gather": (41, 0),
    "ulysses": (11, 0),
}
"""By kind what cp adds to a layer, and with each block of another rank."""

OPERATORS_OF_EXPERTS, OPERATORS_OF_SENT_EXPERTS, OPERATORS_OF_OVERLAP = 49, 11, 56
"""Of a router with its experts beside a feed-forward, of sending rows to other ranks, and of doing so in halves."""

CALLS_OF_TP, CALLS_OF_SP, CALLS_OF_ENDS = 8400, 2300, (5600, 7100)
"""Calls in Python of DTensor in forward and backward of a layer that is cut over tp, more of them with sp, and in those
of embedding, head and loss, without sp and with it; where a layer has experts only its attention is cut."""

OF_ATTENTION = 0.54
"""Share of a layer's that are those of its attention."""

CALLS_OF_ZERO2, CALLS_OF_ZERO3, CALLS_OF_SLICED_SHARDS = 1650, 2250, 1000
"""Of FSDP, where gradients are sharded, where weights are, too, and more of either where those are cut over tp."""

CALLS_OF_ENDS_APART = 3000
"""Of FSDP, where embedding and head are groups of their own, of those and of the whole model's."""

CALLS_OF_RINGS, CALLS_OF_A_BLOCK, CALLS_OF_GATHERED_CONTEXT = 115, 480, 210
"""Of a ring over the blocks of other ranks, and of each of those; of attention that gathers or exchanges heads."""

CALLS_OF_EXPERTS, CALLS_OF_SENT_EXPERTS, CALLS_OF_COPIES, CALLS_OF_SPLIT_BACKWARD = 170, 230, 340, 830
"""Of a router and its experts, of sending rows to those of other ranks, of weights with copies that were rounded, and
of a schedule that splits backward."""

CALLS_OF_AGAIN: Mapping[str, tuple[float, float]] = {"none": (0, 0.0), "full": (2200, 0.4), "selective": (7700, 0.65)}
"""Of recomputation: its own, and the share of DTensor's that it makes again."""

ALONG_HIDDEN, ALONG_HEADS, ALONG_FFN, ALONG_VOCAB = 50, 50, 28, 44
"""Bytes that operators bound by memory read and write for each token, in forward and backward: of a layer by hidden
size, by the width of queries and keys, and by that of the feed-forward; of the loss by the vocabulary."""

COMPILED_HIDDEN, COMPILED_HEADS, COMPILED_FFN = 56, 25, 16
"""The same of a compiled layer, as the compiler counts what its fused kernels read and write, each buffer once: torch
2.13's inductor on a CPU, which fuses in other places than for a GPU."""

_EAGER = ALONG_HIDDEN, ALONG_HEADS, ALONG_FFN
_COMPILED = COMPILED_HIDDEN, COMPILED_HEADS, COMPILED_FFN

WITHIN = ("forward_tp", "forward_cp", "forward_ep", "loss", "backward_ep", "backward_cp", "backward_tp")
"""Phases of a micro-batch in which something is sent that is waited for; a ring sends and receives at the same time."""

BETWEEN = ("forward_pp", "backward_pp")
"""Those in which stages send to one another, and receive."""

AGAIN = 1 / 3
"""Share of those of a layer that recomputation adds: selective keeps results of products, and little else."""

ROUNDED, WIDENED, ADDED, COPIED = 6, 6, 10, 16
"""Bytes for each parameter with a copy in bfloat16: to round it once a step, to widen its gradient in the first
micro-batch, and to add it to the sum in each of the others; once a step DDP copies sums into its buckets and back."""

CASTS, ADDS, ADDS_OF_DDP = 12, 12, 16
"""For each without: where FSDP gathers it, to round it and to widen its gradient, in each micro-batch; and to add that
to the sum, in each but the first; DDP adds to its buckets in each."""

ONCE_A_STEP: Mapping[str, tuple[int, int]] = {
    "float32_master": (12, 28),
    "bfloat16_moments": (12, 116),
    "pure_bfloat16": (6, 14),
}
"""By precision bytes for each gradient, for its norm and clipping, and for each weight that this rank updates. Moments
in another dtype than their weights are updated by plain operators, piece by piece."""


@dataclass(frozen=True)
class Ours(Profile):
    """Float32 weights, bfloat16 arithmetic; every parallelism with its defaults."""

    source: ClassVar[str] = (
        "clusterbench/parallel (traffic, memory, FLOPs), which each run holds against what it counts; operators and "
        "bytes of operators as 'clusterbench dry-run' counts them"
    )
    precisions: ClassVar[tuple[str, ...]] = tuple(PRECISIONS)

    def objection(self, priced: PricedJob) -> str | None:
        if priced.recompute not in ("none", "selective", "full"):
            return f"recompute '{priced.recompute}' is not one of none, selective, full"
        return objection_to(priced.job, _active(priced)) or objection_to_options(priced, _knows_compiled(priced.job))

    def work(self, priced: PricedJob) -> StepWork:
        job, active = priced.job, _active(priced)
        stages, sent = [], []
        kinds = list(_kinds(priced, active))
        for part, number in kinds:
            traffic = list(traffic_of_step(active, part))
            stages.append(_stage(priced, active, part, number, traffic))
            sent.append(traffic)
        fullest = max(range(len(stages)), key=lambda number: stages[number].parameters)
        reduced = [each for each in sent[fullest] if each.during == "reduce" and not job.layout.shards_gradients]
        after = [each for each in sent[fullest] if each.during in ("share", "norm") or each.during.startswith("sum_")]
        states = expected_states(active, kinds[fullest][0])
        moments = states["optimizer_state"] / (2 * job.moment_bytes)
        of_gradient, of_update = ONCE_A_STEP[job.precision]
        return StepWork(
            head_dim=job.shape.head_dim,
            num_micro_batches=priced.num_micro_batches,
            stages=stages,
            boundary_bytes=job.compute_bytes * job.residual_tokens * job.shape.hidden_size,
            pipeline_nodes=priced.num_nodes,
            gradients=[_messages(each, priced) for each in reduced],
            after=[_messages(each, priced) for each in after],
            optimizer_bytes=of_gradient * states["gradients"] / job.master_bytes + of_update * moments,
            bubble=_bubble(priced, active),
            is_in_turn=job.device == "cpu",
        )

    def memory(self, priced: PricedJob) -> Sequence[Mapping[str, float]]:
        active = _active(priced)
        return [_held(active, part) for part in _fullest_of_kinds(priced, active)]

    def held(self, priced: PricedJob, room: float = inf) -> float:
        active, most = _active(priced), 0.0
        parts = _fullest_of_kinds(priced, active)
        # what is there between steps takes no search for a moment
        for held in chain((_at_rest(active, part) for part in parts), (_held(active, part) for part in parts)):
            most = max(most, sum(held.values()))
            if most > room:
                break
        return most


def _knows_compiled(job: TrainingJob) -> bool:
    """Whether what its compiled layers read and write was counted: of dense ones that are whole, on a GPU."""
    is_whole = not any(job.layout.uses(axis) for axis in ("tp", "cp"))
    return job.device == "cuda" and is_whole and not job.shape.num_experts


def _at_rest(active: Sequence[Parallelism], part: TrainingJob) -> dict[str, float]:
    """Bytes between steps, of all stages of a kind; :func:`_held` is never less."""
    states = expected_states(active, part)
    return {name: states[name] for name in ("parameters", "optimizer_state")}


def _held(active: Sequence[Parallelism], part: TrainingJob) -> dict[str, float]:
    kept = _at_rest(active, part)
    rest = fullest_moment(active, part).held - kept["parameters"] - kept["optimizer_state"]
    return kept | {"gradients and activations": rest}


def _active(priced: PricedJob) -> Sequence[Parallelism]:
    options = dict(priced.options)
    if priced.recompute != "none":
        options["recompute"] = priced.recompute
    if priced.chunks > 1:
        options |= {"schedule": "interleaved_1f1b", "chunks_per_rank": priced.chunks}
    return active_in(priced.job.layout, from_options(options))


def _kinds(priced: PricedJob, active: Sequence[Parallelism]) -> Iterator[tuple[TrainingJob, int]]:
    """A job for each kind of stages, and how many there are."""
    pipeline = of_kind(Pipeline, active)
    if pipeline is None:
        yield priced.job, 1
        return
    for last, number in _alike(pipeline, priced.job.shape.num_layers, priced.job.layout.pp):
        yield part_of(priced.job, active, last), number


def _fullest_of_kinds(priced: PricedJob, active: Sequence[Parallelism]) -> list[TrainingJob]:
    """A job for each kind of stages: of the first, which has the most micro-batches in flight."""
    pipeline = of_kind(Pipeline, active)
    if pipeline is None:
        return [priced.job]
    kinds = _alike(pipeline, priced.job.shape.num_layers, priced.job.layout.pp)
    return [part_of(priced.job, active, last - number + 1) for last, number in kinds]


@lru_cache(maxsize=4096)  # layouts that differ in dp and micro-batches have the same stages
def _alike(pipeline: Pipeline, num_layers: int, pp: int) -> Sequence[tuple[int, int]]:
    """Of each kind of stages, from the first on, the rank of the last of it, and how many there are."""
    found, last = [], -1
    for _, alike in groupby(as_one(pipeline.held(num_layers, pp, pp_rank)) for pp_rank in range(pp)):
        number = len(list(alike))
        last += number
        found.append((last, number))
    return found


def _stage(
    priced: PricedJob,
    active: Sequence[Parallelism],
    part: TrainingJob,
    number: int,
    traffic: Sequence[Traffic],
) -> StageWork:
    shape, layout, micro_batches = part.shape, part.layout, priced.num_micro_batches
    executed = executed_by_rank(active, part, layout.cp - 1)
    # the counters take all of a causal block for computed
    attention = sum(
        flops / (2 if kind == CAUSAL_ATTENTION else 1)
        for (kind, _), flops in executed.items()
        if kind in (ATTENTION, CAUSAL_ATTENTION)
    )
    products = sum(flops for (kind, _), flops in executed.items() if kind not in (ATTENTION, CAUSAL_ATTENTION))
    is_repeated = any(parallelism.repeats != "none" for parallelism in active)
    parameters = _multiplied(active, part)
    heads = shape.head_dim * (shape.num_heads + shape.num_kv_heads) / layout.tp
    ffn = shape.ffn_hidden_size * max(1, shape.experts_per_token + shape.num_shared_experts) / layout.tp
    width = part.compute_bytes / DTYPE_BYTES["bfloat16"]
    is_compiled = bool(priced.options.get("compile"))
    along_hidden, along_heads, along_ffn = _COMPILED if is_compiled else _EAGER
    of_layer = width * part.residual_tokens * along_hidden * shape.hidden_size
    of_layer += width * part.local_tokens * (along_heads * heads + along_ffn * ffn)
    of_loss = ALONG_VOCAB * part.local_tokens * shape.vocab_size / layout.tp * part.has_head
    is_replicated = of_kind(DataParallel, active) is not None
    of_weights = parameters * _bytes_of_a_parameter(part, micro_batches, is_replicated)
    of_a_layer = KERNELS_OF_A_COMPILED_LAYER if is_compiled else OPERATORS_OF_A_LAYER
    operators = of_a_layer + OPERATORS_COMPUTED_AGAIN * is_repeated
    operators += OPERATORS_OF_A_SLICE * layout.uses("tp")
    operators += OPERATORS_WITHOUT_COPIES * (not has_copy("norm.weight", part))
    if (context := of_kind(ContextParallel, active)) is not None and layout.uses("cp"):
        of_any, of_block = OPERATORS_OF_CONTEXT[context.context]
        operators += of_any + of_block * (layout.cp - 1)
    if shape.num_experts:
        experts = of_kind(ExpertParallel, active)
        is_split = experts is not None and experts.expert_overlap
        of_sent = OPERATORS_OF_SENT_EXPERTS + OPERATORS_OF_OVERLAP * is_split
        operators += OPERATORS_OF_EXPERTS + of_sent * layout.uses("ep")
    return StageWork(
        matmul_flops=products / micro_batches,
        attention_flops=attention / micro_batches,
        memory_bytes=part.num_layers * of_layer * (1 + AGAIN * is_repeated) + of_loss + of_weights,
        operators=part.num_layers * operators + OPERATORS_OF_THE_ENDS * (part.embeds or part.has_head),
        messages=list(_within(priced, traffic, products / micro_batches)),
        parameters=parameters,
        stages=number,
        # a forward and a backward along each boundary of its chunks with another rank
        neighbours=round(sum(sent.count for sent in traffic if sent.during in BETWEEN) / 2 / micro_batches),
        host_calls=host_calls(active, part, is_compiled),
    )


def host_calls(active: Sequence[Parallelism], part: TrainingJob, is_compiled: bool = False) -> float:
    """Of a micro-batch, beside those that launch the operators of a plain layer.

    What a compiled layer computes again is a part of its function: Python has nothing to do with it.
    """
    layout, shape = part.layout, part.shape
    repeats = next((parallelism.repeats for parallelism in active if parallelism.repeats != "none"), "none")
    again, share = CALLS_OF_AGAIN["none" if is_compiled else repeats]
    calls: float = again
    of_ends = 0.0
    if layout.uses("tp"):
        sliced = CALLS_OF_TP + CALLS_OF_SP * layout.sp
        calls += sliced * (OF_ATTENTION if shape.num_experts else 1) * (1 + share)
        of_ends = CALLS_OF_ENDS[layout.sp] * (part.embeds + part.has_head) / 2
    if layout.zero >= 2:
        calls += CALLS_OF_ZERO3 if layout.zero == 3 else CALLS_OF_ZERO2
        calls += CALLS_OF_SLICED_SHARDS * layout.uses("tp")
        of_ends += CALLS_OF_ENDS_APART * ends_are_apart(shape, layout)
    if (context := of_kind(ContextParallel, active)) is not None:
        calls += (
            CALLS_OF_RINGS + CALLS_OF_A_BLOCK * (layout.cp - 1)
            if context.context in ("ring", "zigzag")
            else CALLS_OF_GATHERED_CONTEXT
        )
    if shape.num_experts:
        calls += CALLS_OF_EXPERTS + CALLS_OF_SENT_EXPERTS * layout.uses("ep")
    calls += CALLS_OF_COPIES * has_copy("norm.weight", part)
    pipeline = of_kind(Pipeline, active)
    calls += CALLS_OF_SPLIT_BACKWARD * (pipeline is not None and splits_backward(pipeline.schedule))
    return part.num_layers * calls + of_ends


def _bytes_of_a_parameter(part: TrainingJob, micro_batches: int, is_replicated: bool) -> float:
    """In each micro-batch on average, for its casts and the sum of its gradients."""
    if has_copy("norm.weight", part):
        once = ROUNDED + WIDENED + COPIED * is_replicated
        return (once + ADDED * (micro_batches - 1)) / micro_batches
    adds = ADDS_OF_DDP if is_replicated else ADDS * (micro_batches - 1) / micro_batches
    return CASTS * (part.compute_bytes < part.master_bytes) + adds


def _multiplied(active: Sequence[Parallelism], part: TrainingJob) -> float:
    """Weights that a rank computes with, whoever keeps them."""
    whole = [parallelism for parallelism in active if parallelism.phase not in ("shard", "replicate")]
    return expected_states(whole, part)["gradients"] / part.master_bytes


def _within(priced: PricedJob, traffic: Sequence[Traffic], matmul_flops: float) -> Iterator[Messages]:
    """What is sent within each micro-batch. What FSDP gathers and reduces passes behind the layers before and after.

    All of it shares the products behind which it may pass, each of its kinds as it has bytes; what passes over another
    network meanwhile has those of backward for itself.
    """
    of_shards = [sent for sent in traffic if sent.during == "gather" or _reduces_shards(sent, priced)]
    apart = [sent for sent in of_shards if sent.axis == REPLICA] if priced.replicas_have_a_network else []
    pools = (
        (apart, BACKWARD * matmul_flops),
        ([sent for sent in of_shards if sent not in apart], matmul_flops),
    )
    for sent in traffic:
        if sent in of_shards:
            pool, behind = pools[sent not in apart]
            pool_bytes = sum(each.size_bytes for each in pool)
            yield _messages(sent, priced, behind * sent.size_bytes / pool_bytes if pool_bytes else 0.0)
        elif sent.during in WITHIN and sent.op != RECV:
            yield _messages(sent, priced)


def _reduces_shards(sent: Traffic, priced: PricedJob) -> bool:
    return sent.during == "reduce" and priced.job.layout.shards_gradients


def _messages(sent: Traffic, priced: PricedJob, behind_flops: float | None = None) -> Messages:
    layout = priced.job.layout
    times = 1 if sent.during in ("share", "norm") or sent.during.startswith("sum_") else priced.num_micro_batches
    if sent.during == "reduce" and not layout.shards_gradients:
        times = 1
    ranks = sent.ranks or layout.degree(sent.axis)
    where = priced.ranks_per_node, priced.rank_order
    is_of_shards = sent.axis in (SHARD, REPLICA)
    at = reach_of_shards(layout, sent.axis, ranks, *where) if is_of_shards else reach(layout, sent.axis, *where)
    part = sent.axis if sent.axis in PARTS else "dp"
    op = "send_recv" if sent.op == "send" else sent.op
    count = sent.count / times
    size = sent.size_bytes / sent.count if sent.count else 0.0
    return Messages(
        part, op, ranks, at.nodes, at.sharing, size, count, behind_flops or 0.0, is_waited_for=behind_flops is None
    )


def _bubble(priced: PricedJob, active: Sequence[Parallelism]) -> float:
    """Idle time of the schedule over that of 1F1B."""
    pipeline = of_kind(Pipeline, active)
    if pipeline is None:
        return 1.0
    pp, micro_batches = priced.job.layout.pp, priced.num_micro_batches
    sizes = pipeline.schedule, pp, micro_batches, pipeline.chunks
    idle = (bubble_formula(*sizes) or _played(*sizes)).value
    return idle / (1 - idle) * micro_batches / (pp - 1)


@lru_cache(maxsize=4096)
def _played(schedule: str, pp: int, micro_batches: int, chunks: int) -> Bubble:
    """Where micro-batches are too few for the closed form."""
    return bubble_of_stages(schedule, pp, micro_batches, chunks, (1.0,) * (pp * chunks))
