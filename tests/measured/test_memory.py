"""Memory that ranks saw, with faults planted in what they left: which rank is named, by how much, and what is void."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import formulas_of, job_of
from clusterbench.expected.memory import ACTIVATIONS, SCALARS_BYTES, held_memory
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.job.passes import AT_REST, STATES
from clusterbench.measured.memory import deviations
from clusterbench.parallel import active_in, expected_at_rest, expected_memory, from_options, part_of
from clusterbench.types import Case
from tests.measured.steps import case_of, derived

Ranks = list[dict[str, int]]


def honest(case: Case, **factors: float) -> Ranks:
    """What each rank leaves that holds what the formula says, times a factor by category."""
    job = job_of(case.point, case.device)
    active, ranks = active_in(job.layout, from_options(case.point)), []
    for rank in range(case.world_size):
        part = part_of(job, active, job.layout.coordinates(rank, str(case.point["rank_order"]))["pp"])
        held = held_memory(active, part)
        at_rest = {f"{name}{AT_REST}": size for name, size in expected_at_rest(active, part).items()}
        seen = {name: int(size * factors.get(name, 1.0)) for name, size in {**held, **at_rest}.items()}
        ranks.append(seen)
    return ranks


def found(case: Case, ranks: Ranks) -> list[str]:
    return [str(each) for each in deviations(case, formulas_of(case), ranks) if each.is_beyond]


def kinds() -> Iterator[tuple[str, dict[str, Any]]]:
    for schedule in SCHEDULES:
        yield "pp2", {"schedule": schedule}
    for again, layout in product(("none", "selective", "full"), ("tp1", "pp2", "dp2+zero3", "cp2", "tp2+sp")):
        yield layout, {"recompute": again}
    for context in ("ring", "zigzag", "all_gather", "ulysses"):
        yield "cp2", {"context": context, "dtype": "bfloat16"}
    for routing in ("real", "balanced"):
        yield "dp2+ep2", {"routing": routing, "shape": "moe-tiny"}


@pytest.mark.parametrize(("layout", "options"), list(kinds()), ids=str)
def test_every_kind_has_a_band_with_its_reason_or_none_and_says_why(layout: str, options: dict[str, Any]) -> None:
    case = case_of(layout, **options)
    bands = {key: what for key, what in case.expected.items() if key.startswith("memory_deviation")}
    for name in STATES:
        assert bands[f"memory_deviation[category={name}]"].value == 0.02
    is_split = options.get("schedule") in ("interleaved_zero_bubble", "zbv", "dualpipev")
    band = bands.get(f"memory_deviation[category={ACTIVATIONS}]")
    assert (band is None) == is_split == ("peak_memory[category=activations]" not in case.expected)
    assert all(what.basis.startswith("at most; ") for what in bands.values())
    if layout in ("tp1", "cp2", "dp2+zero3"):
        assert band is not None
        assert band.value == 0.05
    assert found(case, honest(case)) == []


def test_a_rank_that_keeps_the_whole_optimizer_state_is_named() -> None:
    case = case_of("dp2+zero1")
    ranks = honest(case)
    whole = honest(case_of("dp2"))[0]
    ranks[1] |= {name: whole[name] for name in ("optimizer_state", f"optimizer_state{AT_REST}")}
    (line,) = found(case, ranks)
    assert line == "optimizer state on rank 1: +100 % against the formula, which allows 2 %"


def test_what_stays_between_steps_is_held_against_the_formula_too() -> None:
    case = case_of("dp2+zero3")
    ranks = honest(case)
    name = f"parameters{AT_REST}"
    ranks[1][name] = 2 * ranks[0][name]  # what was gathered is still there, and no more than within the step
    assert found(case, ranks) == ["parameters at rest on rank 1: +100 % against the formula, which allows 2 %"]


def test_a_stage_with_too_many_micro_batches_is_named_though_another_one_holds_more() -> None:
    case = case_of("pp4", shape="llama-1b", global_batch_size=16)
    ranks = honest(case)
    assert ranks[2][ACTIVATIONS] * 1.5 < ranks[0][ACTIVATIONS]
    ranks[2][ACTIVATIONS] = int(ranks[2][ACTIVATIONS] * 1.5)
    (line,) = found(case, ranks)
    assert line.startswith("activations on rank 2: +50 % against the formula")


def test_too_little_is_a_difference_of_the_fullest_rank() -> None:
    case = case_of("dp2")
    ranks = honest(case, gradients=0.5)
    assert found(case, ranks) == ["gradients on rank 0: -50 % against the formula, which allows 2 %"]
    ranks = honest(case)
    ranks[1]["gradients"] //= 2  # where states are shared out, a rank may hold less than the fullest
    assert found(case, ranks) == []


@pytest.mark.parametrize(("category", "limit"), [("gradients", 0.02), (ACTIVATIONS, 0.05)])
def test_a_band_ends_where_it_says(category: str, limit: float) -> None:
    case = case_of("tp1")
    formula = case.expected[f"peak_memory[category={category}]"].value
    for sign in (1, -1):
        (inside,), (outside,) = honest(case), honest(case)
        inside[category] = int(formula + sign * (limit * formula + SCALARS_BYTES - 8))
        outside[category] = int(formula + sign * (limit * formula + SCALARS_BYTES + 8))
        assert found(case, [inside]) == []
        assert len(found(case, [outside])) == 1


def test_a_router_may_send_everything_to_one_rank_and_no_more() -> None:
    case = case_of("dp2+ep2", shape="moe-tiny", seq_len=256)
    assert (
        "the router may send all rows of 2 ranks to one"
        in case.expected[f"memory_deviation[category={ACTIVATIONS}]"].basis
    )
    job = job_of(case.point)
    active = active_in(job.layout, from_options(case.point))
    ranks = honest(case)
    ranks[0][ACTIVATIONS] = int(expected_memory(active, job, load=2.0)[ACTIVATIONS])
    ranks[1][ACTIVATIONS] = int(expected_memory(active, job, load=0.0)[ACTIVATIONS])
    assert found(case, ranks) == []
    assert len(found(case, honest(case, activations=2.0))) == 1
    even = case_of("dp2+ep2", shape="moe-tiny", seq_len=256, routing="balanced")
    assert len(found(even, ranks)) == 1


def test_the_figures_of_that_category_and_of_the_whole_are_void_and_the_time_is_kept() -> None:
    case = case_of("dp2")
    figures = derived(case, memory=honest(case, gradients=2.0))
    why = "void: gradients on rank 0: +100 % against the formula, which allows 2 %"
    formula = case.expected["peak_memory[category=gradients]"].value
    for category in ("gradients", "total"):
        metric = figures[f"peak_memory[category={category}]"]
        assert (metric.value, metric.basis) == (None, why)
    assert figures["peak_memory[category=gradients]"].high == 2 * formula  # what was measured, to be struck out
    for kept in ("peak_memory[category=parameters]", "memory_at_rest[category=parameters]", "step_time"):
        assert figures[kept].value is not None
    deviation = figures["memory_deviation[category=gradients]"]
    assert deviation.value == pytest.approx(1.0, rel=0.01)
    assert deviation.basis.startswith("differs: gradients on rank 0: +100 %")


def test_on_a_gpu_nothing_is_void_as_no_formula_was_held_against_one() -> None:
    case = case_of("dp2", "cuda", dtype="bfloat16")
    ranks = honest(case, gradients=2.0)
    assert len(found(case, ranks)) == 1
    assert derived(case, memory=ranks)["peak_memory[category=total]"].value is not None


def test_runs_planned_before_there_were_bands_are_not_judged() -> None:
    case = case_of("dp2")
    for key in [key for key in case.expected if key.startswith("memory_deviation")]:
        del case.expected[key]  # type: ignore[attr-defined]
    ranks = honest(case, gradients=2.0)
    assert found(case, ranks) == []
    assert not any(key.startswith("memory_deviation") for key in derived(case, memory=ranks))
    assert derived(case, memory=ranks)["peak_memory[category=total]"].value is not None
    assert found(case_of("dp2"), []) == []


def test_a_category_that_no_rank_recorded_is_not_judged() -> None:
    case = case_of("dp2")
    assert found(case, [{"reserved": 7}, {"reserved": 5}]) == []
    assert len(found(case, honest(case, optimizer_state=0.0))) == 1  # none is there, which is another thing


def test_stages_of_an_earlier_version_are_held_against_what_it_planned() -> None:
    """Of stages a plan has the fullest rank alone; what is worked out for each today is of another step."""
    case, key = case_of("pp2-dp2+zero3"), "peak_memory[category=parameters]"
    earlier = honest(case, parameters=1.4)
    assert found(case, earlier) != []
    planned = replace(
        case, expected={**case.expected, key: replace(case.expected[key], value=case.expected[key].value * 1.4)}
    )
    assert found(planned, earlier) == []
    assert found(planned, honest(case, parameters=1.6)) != []
