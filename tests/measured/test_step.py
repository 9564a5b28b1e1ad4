"""Figures of one training step, from what unlike ranks saw of it: whose counts, and over what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import TrainStep, formulas_of
from clusterbench.cluster import Cluster
from clusterbench.job.passes import Computed, Executed, ExpertLoad, Moved
from clusterbench.run_folder.passes import as_json
from clusterbench.types import PROOF_TIME, Case, Metric, Place
from tests.measured.steps import case_of, derived, observed

RATES = ("tokens_per_s", "tokens_per_s_per_rank", "model_flops_per_s_per_rank", "mfu", "hfu")

Figures = dict[str, Metric]


def shown(
    case: Case, seconds: Sequence[float] = (1.0,), passes: Mapping[str, Any] | None = None, **more: Any
) -> Figures:
    """Of a case whose ranks all took so long in each iteration."""
    seen = replace(observed(case, **passes or {}), seconds=[seconds] * case.world_size, **more)
    place = Place(Cluster(1, 8, case.device, "NVIDIA H100 80GB HBM3" if case.device == "cuda" else ""), 1)
    return {metric.key: metric for metric in TrainStep.derive(case, seen, place)}


def test_a_step_takes_as_long_as_its_slowest_rank_in_each_iteration() -> None:
    case = case_of("dp2")
    seen = replace(observed(case), seconds=[[1.0, 1.0, 3.0], [2.0, 2.0, 1.0]])
    (time,) = (m for m in TrainStep.derive(case, seen, Place(Cluster(1, 8, "cpu"), 1)) if m.name == "step_time")
    assert (time.value, time.iterations) == (2.0, 3)


def test_the_slow_end_of_the_time_is_the_low_end_of_every_rate() -> None:
    figures = shown(case_of("dp2", "cuda", dtype="bfloat16"), [1.0, 2.0, 4.0])
    rates = [figure for figure in figures.values() if figure.name != "step_time"]
    assert {*RATES} == {rate.name for rate in rates}
    for rate in rates:
        assert rate.value
        assert (rate.low, rate.high) == (pytest.approx(rate.value / 2), pytest.approx(rate.value * 2)), rate.key


def test_a_step_that_multiplies_in_float8_is_over_the_peak_of_float8_and_that_of_bfloat16_stands_beside() -> None:
    figures = shown(case_of("tp2", "cuda", dtype="bfloat16", float8="tensorwise"))
    over = {
        peak: figures[f"mfu[flops_convention=palm,peak={peak}]"].value for peak in ("datasheet", "datasheet bfloat16")
    }
    needed = figures["model_flops_per_s_per_rank[flops_convention=palm]"].value
    assert needed
    assert over == {
        "datasheet": pytest.approx(needed / 1979e12),
        "datasheet bfloat16": pytest.approx(needed / 989e12),
    }


def test_of_what_ranks_prove_the_worst_is_shown() -> None:
    figures = shown(case_of("dp2"), evidence=[{"parity_loss": 2e-9}, {"parity_loss": 3e-9}])
    assert figures["parity_loss"].value == 3e-9


def test_a_proof_takes_what_it_took_the_slowest_rank_and_the_job_on_one_rank() -> None:
    evidence = [{PROOF_TIME: 4.0}, {PROOF_TIME: 1.0}]
    passes = {"on_one_rank": [{"seconds": 2.0}, {}], "late_step": [{"seconds": 0.5}, {}]}
    figures = shown(case_of("dp2"), passes=passes, evidence=evidence)
    assert figures[PROOF_TIME].value == 6.5


def test_what_the_operators_come_to_is_the_mean_of_ranks_with_causal_attention_as_half() -> None:
    case = replace(case_of("dp2"), expected={})
    ranks = [
        [Executed("aten::mm", "products", "forward", 1, 100), Executed("x", "causal attention", "forward", 1, 60)],
        [Executed("aten::mm", "products", "forward", 1, 300)],
    ]
    figures = derived(case, executed=as_json(ranks))
    assert figures["executed_flops_per_s_per_rank"].value == (100 + 30 + 300) / 2


def test_bytes_on_an_axis_are_those_of_the_busiest_rank() -> None:
    case = replace(case_of("dp2"), expected={})
    ranks = [[Moved("dp", "all_reduce", count, 8, 100.0 * count)] for count in (1, 3)]
    figures = derived(case, traffic=as_json(ranks))
    for name, least, most in (("traffic_bytes[axis=dp]", 100.0, 300.0), ("collectives[axis=dp]", 1, 3)):
        assert (figures[name].value, figures[name].low, figures[name].high) == (most, least, most)


def test_idle_shares_are_of_the_whole_step_and_played_by_the_times_of_each_stage() -> None:
    """GPipe with two micro-batches; the second stage takes longer, and the first message a second."""
    case = case_of("pp2", global_batch_size=4, schedule="gpipe")
    assert formulas_of(case).job.gradient_accumulation_steps == 2
    first = [("F", 0, 0, 0, 1), ("F", 0, 1, 1, 2), ("B", 0, 0, 9, 11), ("B", 0, 1, 12, 14)]
    second = [("F", 1, 0, 2, 4), ("F", 1, 1, 4, 6), ("B", 1, 0, 6, 9), ("B", 1, 1, 9, 12)]
    ranks = [[Computed(*action) for action in actions] for actions in (first, second)]
    figures = derived(case, timeline=as_json(ranks))
    for source, step_s in (("measured", 14), ("simulated", 13)):
        bubble = figures[f"bubble[source={source}]"]
        of_first, of_second = 1 - 6 / step_s, 1 - 10 / step_s
        assert (bubble.low, bubble.high) == (pytest.approx(of_second), pytest.approx(of_first)), source
        assert bubble.value == pytest.approx((of_first + of_second) / 2)


def test_attention_takes_as_long_as_on_the_busiest_rank_over_the_mean() -> None:
    figures = derived(case_of("cp2"), attention=[1.0, 3.0])
    time = figures["attention_time"]
    assert (time.value, time.low, time.high) == (3.0, 1.0, 3.0)
    assert figures["attention_imbalance"].value == 1.5


def test_parts_of_the_experts_take_as_long_as_on_the_slowest_rank() -> None:
    loads = [ExpertLoad({"dispatch": at, "experts": 2.0}, imbalance, [8]) for at, imbalance in ((0.5, 1.25), (0.25, 2))]
    figures = derived(case_of("dp2+ep2", shape="moe-tiny"), experts=as_json(loads))
    dispatch = figures["expert_time[part=dispatch]"]
    assert (dispatch.value, dispatch.low, dispatch.high) == (0.5, 0.25, 0.5)
    assert figures["expert_imbalance[part=experts]"].value == 2
