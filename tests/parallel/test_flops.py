"""Counted FLOPs equal the formula to the last digit, on every rank, by kind of operator, forward and backward apart."""

from __future__ import annotations

import shutil

import pytest

from clusterbench.expected.flops import routed_kind
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.job.flops import BATCHED_PRODUCTS, GROUPED_PRODUCTS, PRODUCTS
from clusterbench.parallel import active_in, from_options
from clusterbench.parallel.context import KINDS
from tests.ranks import run_ranks
from tests.share import some_of
from tests.training.jobs import Case, Together, flops_of, make_job, name_of, objection_to

MQA, TIED = {"shape": "llama-tiny-mqa"}, {"shape": "llama-tiny-tied"}
FOUR = {"micro_batch_size": 1}
"""Four micro-batches in place of two."""
EVEN, MOE, SHARED = {"routing": "balanced"}, {"shape": "moe-tiny"}, {"shape": "moe-shared-tiny"}
HALF = {"dtype": "bfloat16"}
AGAIN = ("selective", "full")

HAS_COMPILER = [path for path in [shutil.which("g++")] if path]
"""With which torch compiles on a CPU."""

EVERY: list[Case] = [
    ("tp1", {}, {}),
    *(("tp1", {"recompute": again}, {}) for again in AGAIN),
    *(("tp1", {}, changes) for changes in (MQA, TIED, HALF, {"seq_len": 48})),
    *(("tp1", {"attention_backend": "math", "recompute": again}, MQA) for again in ("none", *AGAIN)),
    ("tp1", {"attention_backend": "flash"}, HALF),
    ("tp1", {"loss_chunks": 4, "recompute": "full"}, TIED),
    ("dp2+zero3", {"loss_chunks": 2}, HALF),
    ("tp1", {"float8": "tensorwise", "recompute": "selective"}, HALF),
    ("dp2+zero3", {"float8": "rowwise", "recompute": "full"}, HALF),
    ("tp2+sp", {"float8": "tensorwise", "recompute": "selective"}, HALF),
    ("tp2", {"float8": "rowwise"}, {**HALF, "shape": "llama-tiny-mqa"}),
    ("dp2+ep2", {"float8": "tensorwise", "routing": "balanced"}, {**HALF, "shape": "moe-shared-tiny"}),
    # tensor and sequence
    ("tp2", {"loss_parallel": False}, {}),
    *(("tp2+sp", {"recompute": again}, MQA) for again in AGAIN),
    ("tp2", {"recompute": "full"}, {**TIED, **HALF}),
    ("tp4", {}, MQA),
    # data and ZeRO
    ("dp2", {"compress": "bf16"}, {}),
    *(("dp2", {"compile": True}, {"dtype": "float32"}) for _ in HAS_COMPILER),
    *((f"dp2+zero{stage}", {"recompute": "full"}, HALF) for stage in (1, 2, 3)),
    ("dp4+zero3", {"shard_group_size": 2}, {}),
    # context
    *((layout, {"context": kind}, {}) for kind in KINDS for layout in ("cp2", "cp4")),
    *(("cp2", {"context": kind, "recompute": again}, HALF) for kind in KINDS for again in AGAIN),
    ("cp4", {"context": "ulysses"}, MQA),
    ("cp2-tp2", {"context": "ulysses", "attention_backend": "math"}, {}),
    # pipeline
    *(("pp2", {"schedule": schedule}, FOUR) for schedule in SCHEDULES),
    *(("pp2", {"schedule": "1f1b", "recompute": again}, FOUR) for again in AGAIN),
    *(("pp2", {"schedule": kind}, {**FOUR, "shape": "llama-tiny-five"}) for kind in ("1f1b", "interleaved_1f1b")),
    ("pp2-dp2", {}, TIED),
    # experts
    *(("tp1", {**EVEN, "recompute": "full"}, shape) for shape in (MOE, SHARED)),
    *(("tp1", {"recompute": again}, {**SHARED, **HALF}) for again in AGAIN),
    *(("dp2+ep2", {**EVEN, **options}, {**MOE, **HALF}) for options in ({}, {"aux_loss": 0.01})),
    *(("dp2+ep2", {**EVEN, "expert_overlap": True, "recompute": again}, {**SHARED, **HALF}) for again in AGAIN),
    ("dp4+ep2+zero3", EVEN, {**MOE, **HALF}),
    # some of everything
    ("dp2-tp2+sp+zero3", {"recompute": "full"}, TIED),
    ("dp2-cp2+zero2", {"context": "ring", "recompute": "full"}, HALF),
    ("pp2-dp2-cp2", {"context": "ring"}, {"rank_order": "llama3"}),
    ("pp2-tp2+sp", {"schedule": "interleaved_1f1b", "recompute": "full"}, {**FOUR, **HALF}),
    ("pp2-cp2", {"schedule": "zbv", "context": "ring"}, FOUR),
    ("pp2-dp2+zero3", {"schedule": "1f1b"}, {**FOUR, **TIED}),
    ("pp2-dp2+ep2", {**EVEN, "schedule": "1f1b", "recompute": "full"}, {**SHARED, **HALF}),
    ("tp2+sp+ep2", {**EVEN, "recompute": "full", "aux_loss": 0.01}, {**SHARED, **HALF}),
    ("dp2-cp2+ep4", {**EVEN, "context": "all_gather"}, {**SHARED, **HALF}),
    ("pp2-dp2-tp2+sp+ep2", {**EVEN, "schedule": "zbv"}, {**SHARED, **HALF, "micro_batch_size": 1}),
    ("dp2-cp2-tp2+sp+zero3", {"context": "ring", "recompute": "full"}, {**MQA, **HALF}),
]
CASES = some_of(EVERY, name_of)
ROUTED: list[Case] = [
    ("dp2+ep2", {"recompute": "full"}, {**MOE, **HALF}),
    ("dp2+ep2", {"expert_overlap": True}, SHARED),
    ("dp2-tp2+sp+ep4+zero1", {}, {**MOE, **HALF}),
]
COUNTED = Together(flops_of, [*CASES, *ROUTED])


@pytest.mark.gloo
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_counted_flops_are_the_formulas(case: Case) -> None:
    assert objection_to(case) is None
    for counted, formula in COUNTED(case):
        assert counted == formula


@pytest.mark.gloo
@pytest.mark.parametrize("case", ROUTED, ids=name_of)
def test_where_a_router_decides_the_ranks_together_execute_the_formula(case: Case) -> None:
    layout, options, changes = case
    job = make_job(layout, **changes)
    routed = routed_kind(active_in(job.layout, from_options(options)), job)
    assert routed == (GROUPED_PRODUCTS if job.dtype == "bfloat16" else PRODUCTS)
    ranks = COUNTED(case)
    for counted, formula in ranks:
        assert {work: number for work, number in counted.items() if work[0] != routed} == {
            work: number for work, number in formula.items() if work[0] != routed
        }
    for work in ranks[0][1]:
        assert sum(counted[work] for counted, _ in ranks) == sum(formula[work] for _, formula in ranks)


@pytest.mark.gloo
def test_a_trainer_that_is_not_ours_executes_the_same() -> None:
    for counted, formula in run_ranks(2, flops_of, "dp2", {}, {}, "plain_ddp"):
        assert counted == formula


@pytest.mark.gloo
def test_factors_of_powersgd_are_batches_of_matrices_and_nothing_else_is() -> None:
    for counted, formula in run_ranks(2, flops_of, "dp2", {"compress": "powersgd"}, {}):
        assert {work: number for work, number in counted.items() if work[0] != BATCHED_PRODUCTS} == formula
