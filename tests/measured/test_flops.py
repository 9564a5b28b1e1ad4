"""FLOPs that ranks counted, with faults planted in what they left: which rank is named, and by how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import formulas_of, job_of
from clusterbench.expected.flops import HELD_AGAINST, UNVERIFIED, executed_by_rank
from clusterbench.expected.formulas import StepFormulas
from clusterbench.job.flops import UNKNOWN
from clusterbench.job.passes import Executed
from clusterbench.measured.flops import differences
from clusterbench.parallel import active_in, from_options, part_of
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.run_folder.passes import as_json
from clusterbench.types import Case
from tests.measured.steps import case_of, derived

Ranks = list[list[Executed]]


def honest(case: Case) -> Ranks:
    """What each rank leaves that executes what the formula says."""
    job = job_of(case.point, case.device)
    active, ranks = active_in(job.layout, from_options(case.point)), []
    for rank in range(case.world_size):
        at = job.layout.coordinates(rank, str(case.point["rank_order"]))
        flops = executed_by_rank(active, part_of(job, active, at["pp"]), at["cp"])
        ranks.append([Executed("aten::x", *work, 1, number) for work, number in flops.items()])
    return ranks


def found(case: Case, ranks: Ranks) -> list[str]:
    return [str(difference) for difference in differences(case, formulas_of(case), ranks)]


def changed(of_rank: list[Executed], change: Callable[[Executed], int]) -> list[Executed]:
    return [replace(executed, flops=change(executed)) for executed in of_rank]


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("tp1", {}),
        ("pp2-dp2+zero1", {"schedule": "zbv"}),
        ("pp2-dp2-cp2", {"context": "ring", "rank_order": "llama3"}),
        ("pp2-tp2+sp", {"recompute": "full", "shape": "llama-1b"}),
        ("dp2+ep2", {"shape": "moe-tiny"}),
    ],
)
def test_ranks_that_execute_the_formula_are_silent(layout: str, options: dict[str, Any]) -> None:
    case = case_of(layout, **options)
    assert found(case, honest(case)) == []
    figures = derived(case, executed=as_json(honest(case)))
    assert {key for key in figures if key.startswith("executed_flops[")} == {
        key for key in case.expected if key.startswith("executed_flops")
    }
    for key, expected in case.expected.items():
        if key.startswith("executed_flops"):
            assert figures[key].value == expected.value
    assert figures["model_flops_per_s_per_rank[flops_convention=palm]"].value is not None


def test_the_rank_that_executes_one_flop_more_is_named() -> None:
    case = case_of("dp4")
    ranks = honest(case)
    ranks[2] = changed(ranks[2], lambda executed: executed.flops + (executed.kind == "products"))
    (first, _) = found(case, ranks)
    assert first.startswith("FLOPs of products in backward on rank 2 are +")


def test_skipped_micro_batches_show_in_every_kind_on_every_rank() -> None:
    case = case_of("dp2")  # of 4 micro-batches
    ranks = [changed(of_rank, lambda executed: executed.flops // 2) for of_rank in honest(case)]
    assert found(case, ranks)[0] == "FLOPs of products in backward on rank 0 are -50 % against the formula"
    assert len(found(case, ranks)) == 2 * 4


def test_recomputation_that_does_not_recompute_shows_in_backward() -> None:
    case = case_of("tp1", recompute="full")
    without = honest(case_of("tp1"))
    assert {line.partition(" are ")[0] for line in found(case, without)} == {
        "FLOPs of products in backward on rank 0",
        "FLOPs of causal attention in backward on rank 0",
    }


def test_stages_that_are_cut_wrongly_on_both_sides_show_against_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    case, honest_part = case_of("pp2"), Pipeline.part

    def half(self: Pipeline, job: Any, pp_rank: int) -> Any:
        part = honest_part(self, job, pp_rank)
        chunks = tuple(chunk._replace(layers=chunk.layers[: len(chunk.layers) // 2]) for chunk in part.chunks)
        return replace(part, chunks=chunks)

    monkeypatch.setattr(Pipeline, "part", half)
    assert case_of("pp2").expected["executed_flops[part=products]"] == case.expected["executed_flops[part=products]"]
    ranks = honest(case)  # each executes what the layout as it is now gives it
    as_now = StepFormulas(job_of(case.point), from_options(case.point))  # those of formulas_of are kept
    assert [str(difference).partition(" are -")[0] for difference in differences(case, as_now, ranks)] == [
        f"FLOPs of {kind} in {during} on all ranks"
        for kind in ("products", "causal attention")
        for during in ("backward", "forward")
    ]


def test_a_routers_choice_is_no_difference_but_a_row_that_is_lost_is() -> None:
    case = case_of("dp2+ep2", shape="moe-tiny")
    ranks = honest(case)

    def moved(by: int) -> Callable[[Executed], int]:
        return lambda executed: executed.flops + by * (executed.kind == "grouped products")

    assert found(case, [changed(ranks[0], moved(+600)), changed(ranks[1], moved(-600))]) == []
    lost = found(case, [changed(ranks[0], moved(+600)), changed(ranks[1], moved(-1200))])
    assert lost[0].startswith("FLOPs of grouped products in backward on all ranks together are -")
    balanced = case_of("dp2+ep2", shape="moe-tiny", routing="balanced")
    assert len(found(balanced, [changed(ranks[0], moved(+600)), changed(ranks[1], moved(-600))])) == 4


def test_an_operator_without_a_formula_is_named_first() -> None:
    case = case_of("tp1")
    ranks = [[*honest(case)[0], Executed("somebody::fused", UNKNOWN, "forward", 3, 0)]]
    assert found(case, ranks) == [
        "FLOPs of somebody::fused, for which no formula is known on rank 0 are counted where the formula has none"
    ]


def test_factors_of_powersgd_are_not_judged() -> None:
    case = case_of("dp2", compress="powersgd")
    batches = Executed("aten::bmm", "batched products", "backward", 30, 2097152)
    ranks = [[*of_rank, batches] for of_rank in honest(case)]
    assert found(case, ranks) == []
    assert found(case_of("dp2"), ranks)[0].startswith("FLOPs of batched products in backward on rank 0")


def test_rates_of_flops_of_such_a_step_are_void_and_its_time_is_kept() -> None:
    case = case_of("dp2")
    ranks = [changed(of_rank, lambda executed: executed.flops // 2) for of_rank in honest(case)]
    figures = derived(case, executed=as_json(ranks))
    for key, metric in figures.items():
        if key.startswith(("mfu", "hfu", "model_flops")):
            assert metric.value is None
            assert metric.basis == "void: FLOPs of products in backward on rank 0 are -50 % against the formula"
    assert figures["step_time"].value == 1.0
    executed = figures["executed_flops[part=products]"]
    assert executed.value == case.expected["executed_flops[part=products]"].value / 2
    assert executed.basis == "differs: FLOPs of products in backward on rank 0 are -50 % against the formula"


def test_on_a_gpu_nothing_is_void_as_formulas_were_held_against_one_card_alone() -> None:
    case = case_of("dp2", "cuda", dtype="bfloat16")
    assert case.expected["executed_flops[part=products]"].basis.startswith(f"{UNVERIFIED}, {HELD_AGAINST}; ")
    ranks = [changed(of_rank, lambda executed: executed.flops // 2) for of_rank in honest(case)]
    assert derived(case, executed=as_json(ranks))["mfu[flops_convention=palm,peak=datasheet]"].value is not None
    assert not any(key.startswith("executed_flops") for key in case_of("dp2", "cuda", dtype="float64").expected)


def test_runs_recorded_before_there_was_a_count_are_not_judged() -> None:
    case = case_of("dp2")
    assert found(case, []) == []
    assert not any(key.startswith("executed_flops") for key in derived(case, executed=[]))
    earlier = replace(case, expected={})
    assert found(earlier, [[], []]) == []


def test_a_run_of_an_earlier_version_is_held_against_its_own_plan() -> None:
    case = case_of("pp2-dp2")
    earlier = [changed(of_rank, lambda executed: 2 * executed.flops) for of_rank in honest(case)]
    assert found(case, earlier) != []
    twice = {
        key: replace(what, value=2 * what.value) if key.startswith("executed_flops") else what
        for key, what in case.expected.items()
    }
    planned = replace(case, expected=twice)
    assert found(planned, earlier) == []
    assert found(planned, [changed(of_rank, lambda executed: 3 * executed.flops) for of_rank in honest(case)]) != []
    # a plan of today with as many in all, of which one rank has too many and another too few
    first, *others = honest(case)
    uneven = [changed(first, lambda executed: 0), changed(others[0], lambda executed: 2 * executed.flops), *others[1:]]
    assert found(case, uneven) != []
