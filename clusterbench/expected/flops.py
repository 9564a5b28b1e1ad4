"""The FLOPs one rank executes in a step, operator by operator as they are counted; no torch.

A product of a table of T rows with a matrix of I x O is 2 T I O FLOP, in forward once, in backward twice: for the
gradient of its rows and for that of the matrix. A block of attention is two such products in forward, and five in
backward, where the scores are computed again, as torch.utils.flop_counter counts them: all of a block, masked or not.
Made of plain products (``math``) it keeps the scores, and is four in backward.
Norms, rotations, softmax, the look-up of tokens, the loss and the optimizer multiply no matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from clusterbench.job import Chunk, TrainingJob, weight_shapes
from clusterbench.job.flops import (
    ATTENTION,
    BACKWARD,
    BATCHED_PRODUCTS,
    CAUSAL_ATTENTION,
    FORWARD,
    GROUPED_PRODUCTS,
    PRODUCTS,
)
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import AttentionBlock, Parallelism, stores_scores, with_own
from clusterbench.parallel.expert import is_expert, is_of_mixture
from clusterbench.shape import ModelShape
from clusterbench.types import Expected, metric_key

METRIC = "executed_flops"
UNVERIFIED = "about; CUDA's operators are counted by the same formulas"
"""How the basis of what was never held against more than one GPU begins; plans of before have it, too."""

HELD_AGAINST = "which were held against one H200 alone"

Work = tuple[str, str]
"""A kind of operators and when they run, both names of :mod:`clusterbench.job.flops`."""


def executed_by_rank(active: Sequence[Parallelism], job: TrainingJob, cp_rank: int = 0) -> Counter[Work]:
    """FLOPs of one step of a rank with the layers of ``job``; with those of the whole model for a job without chunks.

    Where a router decides how many rows a rank gets (:func:`routed_kind`) they are those of an even load, of which the
    sum over the ranks of a stage is exact: no row is dropped.
    """
    return _of_products(active, job) + _of_attention(active, job, (cp_rank,))


def _of_products(active: Sequence[Parallelism], job: TrainingJob) -> Counter[Work]:
    """All but attention, which is the same on every cp rank."""
    is_repeated, is_fused = _repeats_layers(active), any(parallelism.fuses_loss for parallelism in active)
    layers, of_expert, of_rank = job.num_layers, _expert_kind(job), job.residual_tokens
    rows = {"region": job.local_tokens, "rank": of_rank, "experts": of_rank * job.shape.experts_per_token}
    flops: Counter[Work] = Counter()
    for product in _products(tuple(active), job.shape, job.layout, job.has_head):
        kind, of_gradients = (of_expert, of_expert) if product.rows == "experts" else product.kinds
        forward = product.flops * rows[product.rows] * (layers if product.in_layers else 1)
        flops[kind, FORWARD] += forward
        if is_repeated and product.is_repeated:
            flops[kind, BACKWARD] += forward
        # the head is the only product outside of layers
        flops[of_gradients, FORWARD if is_fused and not product.in_layers else BACKWARD] += 2 * forward
    return _in_step(flops, job)


def _of_attention(active: Sequence[Parallelism], job: TrainingJob, cp_ranks: Iterable[int]) -> Counter[Work]:
    """Attention, on these ranks of cp together."""
    is_repeated, is_plain = _repeats_layers(active), stores_scores(active, job)
    again = 4 if is_plain else 5  # scores that are kept are not computed again
    heads = job.shape.num_heads
    for parallelism in active:
        heads = parallelism.attention_heads(heads, job)
    pairs: Counter[str] = Counter()
    for cp_rank in cp_ranks:
        for block in _blocks(active, job, cp_rank):
            kind = BATCHED_PRODUCTS if is_plain else CAUSAL_ATTENTION if block.causal else ATTENTION
            pairs[kind] += block.times * block.queries * block.keys
    flops: Counter[Work] = Counter()
    for kind, of_a_head in pairs.items():
        one_product = 2 * job.micro_batch_size * heads * of_a_head * job.num_layers * job.shape.head_dim
        flops[kind, FORWARD] = 2 * one_product
        flops[kind, BACKWARD] = (again + 2 * is_repeated) * one_product
    return _in_step(flops, job)


def _in_step(of_micro_batch: Counter[Work], job: TrainingJob) -> Counter[Work]:
    return Counter({work: number * job.gradient_accumulation_steps for work, number in of_micro_batch.items()})


def _repeats_layers(active: Sequence[Parallelism]) -> bool:
    return any(parallelism.repeats == "full" for parallelism in active)


def executed_by_all(active: Sequence[Parallelism], job: TrainingJob) -> Counter[Work]:
    """FLOPs of one step of all ranks together, from the whole model's shape: whatever the stages of a pipeline have."""
    layout, micro_batches = job.layout.of_micro_batch, job.gradient_accumulation_steps * job.layout.dp
    computing = with_own(
        active,
        "multiplied",
        "weight",
        "in_float8",
        "attention_heads",
        "attention_blocks",
        "repeats",
        "stores_scores",
        "attends",
        "product_rounding",
        "fuses_loss",
    )
    flops = _of_micro_batch(computing, job.shape, layout, job.seq_len, job.micro_batch_size, job.dtype, job.device)
    return Counter({work: number * micro_batches for work, number in flops.items()})


@lru_cache(maxsize=4096)  # in a plan many layouts differ in dp alone
def _of_micro_batch(
    active: tuple[Parallelism, ...],
    shape: ModelShape,
    layout: ParallelLayout,
    seq_len: int,
    micro_batch_size: int,
    dtype: str,
    device: str,
) -> Counter[Work]:
    """FLOPs of one micro-batch of all ranks that share it."""
    job = TrainingJob(shape, layout, seq_len, micro_batch_size * layout.dp, micro_batch_size, dtype, device=device)
    of_products = _of_products(active, job)
    flops = Counter({work: number * layout.cp for work, number in of_products.items()})
    flops += _of_attention(active, job, range(layout.cp))
    return Counter({work: number * layout.tp for work, number in flops.items()})


def routed_kind(active: Sequence[Parallelism], job: TrainingJob) -> str:
    """The kind of operators of which the router decides how much a rank executes; empty where it is known."""
    is_routed = job.layout.spreads_experts and any(parallelism.routes for parallelism in active)
    return _expert_kind(job) if job.shape.has_experts and is_routed else ""


def expected_flops(active: Sequence[Parallelism], job: TrainingJob) -> Iterator[tuple[str, Expected]]:
    """Metric key -> FLOPs of one step of all ranks together, by kind of operators."""
    if job.device == "cuda" and job.dtype == "float64":
        return  # attention is made of other operators there
    basis = (
        "of all ranks in one step, from the shape: 2 FLOP for each row, input and output of a matrix product, twice "
        "that in backward; attention with every query of a block against every key, masked or not, and the scores "
        "once more in backward"
    )
    if _repeats_layers(active):
        basis += "; layers once more up to what backward needs"
    if job.device == "cuda":
        basis = f"{UNVERIFIED}, {HELD_AGAINST}; {basis}"
    by_kind: Counter[str] = Counter()
    for (kind, _), number in executed_by_all(active, job).items():
        by_kind[kind] += number
    for kind, number in by_kind.items():
        yield metric_key(METRIC, part=kind), Expected(float(number), "FLOP", f"{basis}; {job.equation}")


def _expert_kind(job: TrainingJob) -> str:
    # torch has no grouped product in float64: there one expert is multiplied after the other
    return PRODUCTS if job.dtype == "float64" else GROUPED_PRODUCTS


class _Product(NamedTuple):
    """The product of one matrix: FLOPs for each row of a forward, and whose rows these are.

    ``region``: those of the region of tensor parallelism, which has the whole sequence. ``rank``: the part of it that
    sequence parallelism leaves a rank, as router and shared experts see it. ``experts``: what the tokens of that part
    send; over an even load a rank gets as many. ``kinds`` are those of the product, and of the two for its gradients.
    """

    rows: str
    flops: int
    in_layers: bool
    is_repeated: bool
    kinds: tuple[str, str]


@lru_cache(maxsize=4096)  # a report asks for many cases that differ in their batch alone
def _products(
    active: tuple[Parallelism, ...], shape: ModelShape, layout: ParallelLayout, has_head: bool
) -> tuple[_Product, ...]:
    """All products of one layer, as all are alike, and of the head."""
    like = TrainingJob(shape, layout, 1, 1, 1, chunks=(Chunk(0, range(1), first=False, last=has_head),))
    cutting, products = with_own(active, "weight", "multiplied"), []
    keeps_late = any(parallelism.product_rounding for parallelism in active)
    for name, size in weight_shapes(like).items():
        if len(size) > 1:
            for parallelism in cutting:
                size = parallelism.multiplied(name, size, like)
            of_experts, in_layers = is_expert(name), name.startswith("layers.")
            rows = "experts" if of_experts else "rank" if is_of_mixture(name) else "region"
            # torch.utils.checkpoint stops before a layer's last product, which nothing in backward needs. Of experts
            # all is needed: the gradient of the router asks for what it weighs. A product that rounds its operands
            # keeps them for backward only when it is through.
            is_repeated = in_layers and (keeps_late or not name.endswith(".feed_forward.down.weight"))
            in_float8 = next(filter(None, (parallelism.in_float8(name) for parallelism in active)), None)
            flops = 2 * (shape.hidden_size * shape.ffn_hidden_size if of_experts else prod(size))
            products.append(_Product(rows, flops, in_layers, is_repeated, in_float8 or (PRODUCTS, PRODUCTS)))
    return tuple(products)


def _blocks(active: Sequence[Parallelism], job: TrainingJob, cp_rank: int) -> Sequence[AttentionBlock]:
    """The calls of attention in one forward of a layer."""
    of_each = (parallelism.attention_blocks(job, cp_rank) for parallelism in active)
    whole = [AttentionBlock(job.seq_len, job.seq_len, causal=True)]
    return next((blocks for blocks in of_each if blocks is not None), whole)
