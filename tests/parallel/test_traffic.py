"""Counted collectives equal the formula, in number and in bytes, for every op and axis."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.formulas.schedules import SCHEDULES, splits_backward
from clusterbench.parallel.context import KINDS
from tests.ranks import run_ranks
from tests.share import some_of
from tests.training.jobs import Case, Together, name_of, objection_to, traffic_of

MQA, TIED = {"shape": "llama-tiny-mqa"}, {"shape": "llama-tiny-tied"}
FOUR = {"micro_batch_size": 1}
"""Four micro-batches in place of two."""
EVEN, MOE, SHARED = {"routing": "balanced"}, {"shape": "moe-tiny"}, {"shape": "moe-shared-tiny"}
"""Routing that does not depend on the data, of which the bytes are known."""
PURE = {"dtype": "bfloat16", "precision": "pure_bfloat16"}
NARROW = {"dtype": "bfloat16", "gradient_dtype": "bfloat16"}
AGAIN = ("selective", "full")
WHOLE_BACKWARD = [schedule for schedule in SCHEDULES if not splits_backward(schedule)]

EVERY: list[Case] = [
    ("tp1", {}, {}),
    # tensor and sequence
    ("tp2", {}, {}),
    ("tp2", {"loss_parallel": False}, {}),
    ("tp2", {}, {"dtype": "bfloat16"}),
    ("tp2", {}, {"max_grad_norm": None}),
    ("tp2", {}, {"global_batch_size": 2}),
    *((layout, {"recompute": again}, {}) for layout in ("tp2", "tp2+sp") for again in AGAIN),
    ("tp2+sp", {}, {}),
    ("tp2+sp", {"loss_parallel": False}, {}),
    ("tp2+sp", {}, {"dtype": "bfloat16"}),
    *((layout, {"float8": "tensorwise"}, {"dtype": "bfloat16"}) for layout in ("tp2", "tp2+sp")),
    ("tp2+sp", {"float8": "rowwise", "recompute": "selective"}, {**MQA, "dtype": "bfloat16"}),
    ("tp4", {}, {}),
    ("tp4+sp", {}, {"global_batch_size": 12}),
    # kv heads that are kept whole, and a tied embedding
    ("tp2+sp", {}, MQA),
    ("tp2", {}, TIED),
    ("dp2-tp2+sp", {}, TIED),
    # data
    ("dp2", {}, {}),
    ("dp2", {"recompute": "full"}, {}),
    ("dp2-tp2", {}, {}),
    ("dp2-tp2+sp", {}, {}),
    ("dp2-tp2+sp", {"loss_parallel": False, "recompute": "full"}, {}),
    # ZeRO
    *((f"{layout}+zero{stage}", {}, {}) for stage in (1, 2, 3) for layout in ("dp2", "cp2", "dp2-cp2", "dp2-tp2+sp")),
    *((f"dp2+zero{stage}", {"recompute": again}, {}) for stage in (2, 3) for again in AGAIN),
    *((f"dp2+zero{stage}", {}, {"dtype": "bfloat16"}) for stage in (1, 2, 3)),
    *((f"dp2{zero}", {}, NARROW) for zero in ("", "+zero1", "+zero2", "+zero3")),
    *((layout, {}, NARROW) for layout in ("tp2", "tp2+sp", "cp2", "pp2", "pp2-dp2")),
    ("dp2-tp2+sp+zero3", {}, NARROW),
    ("dp4+zero3", {"shard_group_size": 2}, NARROW),
    ("dp4+ep2", EVEN, {**NARROW, **MOE}),
    *((layout, {}, PURE) for layout in ("dp2", "tp2+sp", "pp2-dp2", "dp2+zero1", "dp2+zero3")),
    *((f"{layout}+zero{stage}", {"shard_group_size": 2}, {}) for stage in (2, 3) for layout in ("dp4", "dp2-cp2")),
    # context
    *((layout, {"context": kind}, {}) for kind in KINDS for layout in ("cp2", "cp2-tp2+sp")),
    *(("cp2", {"context": kind, "recompute": again}, {}) for kind in KINDS for again in AGAIN),
    ("cp4", {"context": "ulysses"}, MQA),
    ("dp2-cp2", {}, {}),
    # pipeline
    *(("pp2", {"schedule": schedule}, FOUR) for schedule in SCHEDULES),
    *((f"pp2-dp2+zero{stage}", {"schedule": schedule}, FOUR) for stage in (2, 3) for schedule in WHOLE_BACKWARD),
    *(("pp2-tp2+sp", {"schedule": "1f1b", "recompute": again}, FOUR) for again in AGAIN),
    *(("pp2-tp2+sp", {"schedule": kind}, {**FOUR, "shape": "llama-tiny-five"}) for kind in ("1f1b", "zbv")),
    ("pp2-dp2+zero3", {"schedule": "interleaved_1f1b"}, {**FOUR, "shape": "llama-tiny-seven"}),
    *(("pp2-cp2", {"schedule": "interleaved_1f1b", "recompute": again}, FOUR) for again in AGAIN),
    *((layout, {"schedule": "zbv"}, FOUR) for layout in ("pp2-dp2", "pp2-tp2+sp", "pp2-cp2", "pp2-dp2+zero1")),
    ("pp2-dp2", {}, TIED),
    ("pp2-dp2+zero3", {}, TIED),
    ("pp4", {"schedule": "looped_bfs"}, {**FOUR, "shape": "llama-tiny-deep"}),
    # experts
    *(("dp2+ep2", {**EVEN, **options}, MOE) for options in ({}, {"expert_overlap": True}, {"aux_loss": 0.01})),
    *(("dp2+ep2", {**EVEN, "recompute": again}, MOE) for again in AGAIN),
    *(("cp2+ep2", {**EVEN, "recompute": again, "aux_loss": 0.01}, MOE) for again in AGAIN),
    *((f"dp4+ep2+zero{stage}", EVEN, MOE) for stage in (1, 2, 3)),
    *((layout, EVEN, SHARED) for layout in ("dp2", "dp4+ep2", "dp2-cp2+ep4", "dp2-tp2+sp+ep2", "pp2-dp2+ep2")),
    ("tp2+sp+ep2", {**EVEN, "recompute": "full", "aux_loss": 0.01}, MOE),
]
CASES = some_of(EVERY, name_of)
ROUTED: list[Case] = [
    ("dp2+ep2", {}, MOE),
    ("dp2+ep2", {"expert_overlap": True}, SHARED),
    ("dp2+ep2", {"recompute": "full"}, MOE),
    ("dp2-tp2+sp+ep4+zero1", {}, MOE),
]
COUNTED = Together(traffic_of, [*CASES, *ROUTED])


@pytest.mark.gloo
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_counted_traffic_is_the_formulas(case: Case) -> None:
    assert objection_to(case) is None
    for counted, formula in COUNTED(case):
        assert counted == formula


@pytest.mark.gloo
@pytest.mark.parametrize("case", ROUTED, ids=name_of)
def test_where_a_router_decides_all_but_the_bytes_to_experts_are_the_formulas(case: Case) -> None:
    totals = COUNTED(case)
    for counted, formula in totals:
        assert {key: calls for key, (calls, _) in counted.items()} == {
            key: calls for key, (calls, _) in formula.items()
        }
        assert {key: sent for key, sent in counted.items() if key[0] != "ep"} == {
            key: sent for key, sent in formula.items() if key[0] != "ep"
        }
    # of the rows: some ranks get more than their share, so the larger of what goes in and out is at least the even load
    assert max(counted["ep", "all_to_all"][1] for counted, _ in totals) >= totals[0][1]["ep", "all_to_all"][1]


@pytest.mark.gloo
def test_kv_heads_that_eight_ranks_keep_whole_change_no_formula() -> None:
    for counted, formula in run_ranks(8, traffic_of, "tp8+sp", {}, {}):  # llama-tiny has 4 of them
        assert counted == formula


def planted(layout: str) -> tuple[Any, Any]:
    import torch
    import torch.distributed as dist

    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.update

    def with_one_more(self: Any) -> None:
        assert self.grid is not None
        dist.all_reduce(torch.zeros(1), group=self.grid.group("tp"))
        honest(self)

    TrainingStep.update = with_one_more  # type: ignore[method-assign]
    return traffic_of(layout, {}, {})


@pytest.mark.gloo
def test_one_all_reduce_more_than_the_formula_shows() -> None:
    counted, formula = run_ranks(2, planted, "tp2+sp")[0]
    assert counted[("tp", "all_reduce")][0] == formula[("tp", "all_reduce")][0] + 1


def test_gradient_buckets_are_counted_by_ddps_rule() -> None:
    from clusterbench.parallel.data import num_buckets

    mib = 2**20
    assert num_buckets([]) == 0
    assert num_buckets([10]) == 1
    assert num_buckets([mib]) == 1  # the first bucket is full at 1 MiB,
    assert num_buckets([mib, 10]) == 2
    assert num_buckets([mib, 24 * mib, mib, 10]) == 3  # the others at 25 MiB
    assert num_buckets([60 * mib] * 3) == 3  # a gradient is never cut
