"""The FLOPs that are expected of ranks, held against what people publish and against each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from clusterbench.expected.flops import executed_by_all, executed_by_rank
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.formulas.transformer import hardware_flops, model_flops
from clusterbench.job import TrainingJob
from clusterbench.job.flops import ATTENTION, CAUSAL_ATTENTION
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, active_in, from_options, part_of
from clusterbench.parallel.context import KINDS
from clusterbench.shape import named_shape

SEQ_LEN, BATCH = 8192, 32


def made(shape: str, layout: str = "tp1", **options: Any) -> tuple[list[Parallelism], TrainingJob]:
    job = TrainingJob(named_shape(shape), ParallelLayout.parse(layout), SEQ_LEN, BATCH, 1, dtype="bfloat16")
    return active_in(job.layout, from_options(options)), job


def of_all(shape: str, layout: str = "tp1", **options: Any) -> int:
    return sum(executed_by_all(*made(shape, layout, **options)).values())


def scores_again(shape: str) -> int:
    """The product of queries and keys that flash attention computes again in backward, and no convention counts."""
    model = named_shape(shape)
    return 2 * model.num_layers * model.num_heads * model.head_dim * SEQ_LEN**2 * BATCH


def norms(shape: str) -> int:
    """Conventions count 6 FLOP for each weight, of norms too, which multiply no matrices."""
    model = named_shape(shape)
    return 6 * (2 * model.num_layers + 1) * model.hidden_size * SEQ_LEN * BATCH


@pytest.mark.parametrize("shape", ["llama-8b", "llama-70b", "llama-1b", "mixtral-8x7b"])
@pytest.mark.parametrize("layout", ["tp1", "dp4", "tp4+sp", "pp2-dp2", "cp4"])
def test_all_ranks_execute_what_palm_counts_but_for_norms_and_scores_computed_again(shape: str, layout: str) -> None:
    published = model_flops(named_shape(shape), SEQ_LEN, BATCH, "palm")
    assert of_all(shape, layout, context="ulysses") == published - norms(shape) + scores_again(shape)


@pytest.mark.parametrize("shape", ["llama-8b", "mixtral-8x7b"])
def test_full_recomputation_adds_what_the_formula_of_hardware_flops_adds(shape: str) -> None:
    model = named_shape(shape)
    added = hardware_flops(model, SEQ_LEN, BATCH, "full") - hardware_flops(model, SEQ_LEN, BATCH, "none")
    norms_again = 2 * 2 * model.num_layers * model.hidden_size * SEQ_LEN * BATCH
    assert of_all(shape, recompute="full") - of_all(shape) == added - norms_again
    assert of_all(shape, recompute="selective") == of_all(shape)


@pytest.mark.parametrize(
    ("kind", "share"), [("ring", 5 / 8), ("zigzag", 5 / 8), ("all_gather", 9 / 16), ("ulysses", 1.0)]
)
def test_context_parallelism_skips_blocks_behind_the_mask(kind: str, share: float) -> None:
    def attention(flops: Counter[tuple[str, str]]) -> int:
        return sum(number for (of, _), number in flops.items() if of in (ATTENTION, CAUSAL_ATTENTION))

    whole = attention(executed_by_all(*made("llama-8b")))
    # of n x n squares n (n + 1) / 2 are not wholly behind the mask; all_gather cuts into twice as many
    assert attention(executed_by_all(*made("llama-8b", "cp4", context=kind))) == share * whole


@pytest.mark.parametrize("kind", KINDS)
def test_every_query_meets_every_key_before_it_exactly_once(kind: str) -> None:
    """The blocks of all ranks together: each below the diagonal once, the diagonal under its mask."""
    active, job = made("llama-8b", "cp4", context=kind)
    (context,) = (parallelism for parallelism in active if parallelism.axis == "cp")
    heads = context.attention_heads(8, job) / 8
    blocks = [block for rank in range(4) for block in context.attention_blocks(job, rank) or ()]
    pairs = (block.times * block.queries * block.keys / (2 if block.causal else 1) for block in blocks)
    seen = sum(pairs) * heads
    assert seen == SEQ_LEN**2 / 2


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", ["llama-8b", "llama-1b"])
def test_the_stages_of_a_pipeline_add_up_to_the_shape(schedule: str, shape: str) -> None:
    active, job = made(shape, "pp4", schedule=schedule)
    if any(parallelism.objection(job) for parallelism in active):
        assert named_shape(shape).tied_embeddings
        return
    stages = sum((executed_by_rank(active, part_of(job, active, pp_rank)) for pp_rank in range(4)), Counter())
    assert stages == executed_by_all(active, job)


def test_kv_heads_that_are_fewer_than_ranks_are_computed_on_each() -> None:
    model = named_shape("llama-8b")  # of 8 kv heads
    one_more_each = 8 * 2 * model.hidden_size * model.head_dim * model.num_layers
    assert of_all("llama-8b", "tp16") - of_all("llama-8b") == 6 * one_more_each * SEQ_LEN * BATCH
