"""The FLOPs one rank executes in a step, operator by operator as they are counted; no torch.

A product of a table of T rows with a matrix of I x O is 2 T I O FLOP, in forward once, in backward twice: for the
gradient of its rows and for that of the matrix. A block of attention is two such products in forward, and five in
backward, where the scores are computed again, as torch.utils.flop_counter counts them: all of a block, masked or not.
Norms, rotations, softmax, the look-up of tokens, the loss and the optimizer multiply no matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from clusterbench.job import Chunk, TrainingJob, weight_shapes
from clusterbench.job.flops import ATTENTION, BACKWARD, CAUSAL_ATTENTION, FORWARD, GROUPED_PRODUCTS, PRODUCTS
from clusterbench.parallel import AttentionBlock, Parallelism
from clusterbench.parallel.expert import is_expert, is_of_mixture
from clusterbench.types import Expected, metric_key

METRIC = "executed_flops"
UNVERIFIED = "about; CUDA's operators are counted by the same formulas, which were not held against a GPU"

Work = tuple[str, str]
"""A kind of operators and when they run, both names of :mod:`clusterbench.job.flops`."""


def executed_by_rank(active: Sequence[Parallelism], job: TrainingJob, cp_rank: int = 0) -> Counter[Work]:
    """FLOPs of one step of a rank with the layers of ``job``; with those of the whole model for a job without chunks.

    Where a router decides how many rows a rank gets (:func:`routed_kind`) they are those of an even load, of which the
    sum over the ranks of a stage is exact: no row is dropped.
    """
    is_repeated = any(parallelism.repeats == "full" for parallelism in active)
    layers, of_expert = len(job.layers), _expert_kind(job)
    flops: Counter[Work] = Counter()
    for name, forward in _products(active, job):
        in_layers, kind = name.startswith("layers."), of_expert if is_expert(name) else PRODUCTS
        if in_layers:
            forward *= layers
        flops[kind, FORWARD] += forward
        flops[kind, BACKWARD] += 2 * forward
        # torch.utils.checkpoint stops before a layer's last product, which nothing in backward needs. Of experts all
        # is needed: the gradient of the router asks for what it weighs.
        if is_repeated and in_layers and not name.endswith(".feed_forward.down.weight"):
            flops[kind, BACKWARD] += forward
    heads = job.shape.num_heads
    for parallelism in active:
        heads = parallelism.attention_heads(heads, job)
    for block in _blocks(active, job, cp_rank):
        kind = CAUSAL_ATTENTION if block.causal else ATTENTION
        pairs = job.micro_batch_size * heads * block.queries * block.keys * layers
        product = 2 * pairs * job.shape.head_dim
        flops[kind, FORWARD] += 2 * product
        flops[kind, BACKWARD] += (7 if is_repeated else 5) * product
    return Counter({work: number * job.gradient_accumulation_steps for work, number in flops.items() if number})


def executed_by_all(active: Sequence[Parallelism], job: TrainingJob) -> Counter[Work]:
    """FLOPs of one step of all ranks together, from the whole model's shape: whatever the stages of a pipeline have."""
    whole = replace(job, chunks=(), pp_rank=0, actions=())
    flops: Counter[Work] = Counter()
    for cp_rank in range(job.layout.cp):
        flops += executed_by_rank(active, whole, cp_rank)
    return Counter({work: number * job.layout.dp * job.layout.tp for work, number in flops.items()})


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
    if any(parallelism.repeats == "full" for parallelism in active):
        basis += "; layers once more up to what backward needs"
    if job.device == "cuda":
        basis = f"{UNVERIFIED}; {basis}"
    by_kind: Counter[str] = Counter()
    for (kind, _), number in executed_by_all(active, job).items():
        by_kind[kind] += number
    for kind, number in by_kind.items():
        yield metric_key(METRIC, part=kind), Expected(float(number), "FLOP", f"{basis}; {job.equation}")


def _expert_kind(job: TrainingJob) -> str:
    # torch has no grouped product in float64: there one expert is multiplied after the other
    return PRODUCTS if job.dtype == "float64" else GROUPED_PRODUCTS


def _products(active: Sequence[Parallelism], job: TrainingJob) -> Iterator[tuple[str, int]]:
    """Each matrix with the FLOPs of its product in one forward: of one layer, as all are alike, and what is around."""
    like = replace(job, chunks=(Chunk(0, range(1), job.embeds, job.has_head),))
    # The region of tensor parallelism has the whole sequence; router and shared experts see a rank's own part of it.
    # Rows of experts count together: over an even load each rank has as many as its tokens send.
    tokens, own = job.local_tokens, job.residual_tokens
    is_head = job.shape.tied_embeddings and job.has_head
    for name, size in weight_shapes(like).items():
        if len(size) == 1 or (name == "embedding.weight" and not is_head):
            continue
        for parallelism in active:
            size = parallelism.multiplied(name, size, like)
        if is_expert(name):
            yield name, 2 * own * job.shape.experts_per_token * prod(size[1:])
        else:
            yield name, 2 * (own if is_of_mixture(name) else tokens) * prod(size)


def _blocks(active: Sequence[Parallelism], job: TrainingJob, cp_rank: int) -> Sequence[AttentionBlock]:
    """The calls of attention in one forward of a layer."""
    of_each = (parallelism.attention_blocks(job, cp_rank) for parallelism in active)
    whole = [AttentionBlock(job.seq_len, job.seq_len, causal=True)]
    return next((blocks for blocks in of_each if blocks is not None), whole)
