"""Where the time of a real step goes, with faults planted on its ranks; and records that cannot be."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cluster import Cluster
from clusterbench.engine.trace import StepTrace, Transfer
from clusterbench.rows import Row
from clusterbench.training.passes import LONGEST_LINE, transfers_of
from clusterbench.types import Case, Metric, Observation, Place
from tests.ranks import run_ranks

FORWARD_DELAY_S, CALL_DELAY_S = 1.0, 0.05
"""Long beside what ranks do to each other that share few cores with other work."""
MOST_TRIES = 3
"""Other work may still hold up a rank for as long as the fault does."""

Seconds = dict[str, float]


PLACE = Place(Cluster(1, 4, "cpu"), 1)


def case_of(layout: str) -> Case:
    benchmark = TrainStep.from_options(
        {"layouts": (layout,), "seq_len": 32, "global_batch_size": 4, "parity": False, "dtype": "float32"}
    )
    (point,) = benchmark.points(PLACE)
    return Case("c", "train_step", 1, point, "cpu", 1, benchmark.world_size(point, PLACE), 1, 1, 60.0, layout)


def derived(case: Case, step_s: float, traced: list[Any]) -> list[Metric]:
    observation = Observation("c", "h", 0, 0, ("a",), [[step_s]] * len(traced), passes={"exposed": traced})
    return [metric for metric in TrainStep.derive(case, observation, PLACE) if metric.name == "step_part"]


def parts_of(metrics: list[Metric]) -> Seconds:
    """``part`` or ``part/axis`` -> seconds of the mean rank."""
    return {"/".join(metric.detail.values()): metric.value or 0.0 for metric in metrics}


# On the ranks

Delayed = list[float]
"""Seconds of every delay, added to when it is over."""


def traced(layout: str, plant: Callable[[Any, Any, Delayed], object]) -> tuple[Any, float]:
    """The record of a step with a fault, and the seconds that the fault delayed it on this rank."""
    from clusterbench.layout import ParallelLayout
    from tests.training.jobs import make_rig

    rig, delayed = make_rig(ParallelLayout.parse(layout)), Delayed()
    step = TrainStep.prepare(rig, case_of(layout).point)
    for _ in range(3):
        step.run()
    step.passes["traffic"]()
    step.passes["exposed"]()  # the first trace of a process takes longer
    plant(step.run.step.step, rig, delayed)
    return step.passes["exposed"](), sum(delayed)


def sleeper(delayed: Delayed) -> Callable[..., None]:
    def sleep(*_: Any) -> None:
        time.sleep(FORWARD_DELAY_S)
        delayed.append(FORWARD_DELAY_S)

    return sleep


def slow_rank(step: Any, rig: Any, delayed: Delayed) -> None:
    if rig.rank == 1:
        step.model.register_forward_pre_hook(sleeper(delayed))


def longer_stage(step: Any, rig: Any, delayed: Delayed) -> None:
    if rig.grid.rank("pp") == 1:
        for stage in step.assembly.stages.stages:
            stage.submod.register_forward_pre_hook(sleeper(delayed))


def slow_tp(step: Any, rig: Any, delayed: Delayed) -> None:
    """Each functional all-reduce, here those over tp alone, is waited for longer by all of its ranks."""
    import torch
    import torch.distributed._functional_collectives as functional

    from clusterbench.engine.transfers import WAIT

    honest = functional.all_reduce

    def all_reduce(*arguments: Any, **options: Any) -> Any:
        reduced = functional.wait_tensor(honest(*arguments, **options))
        with torch.profiler.record_function(WAIT):
            time.sleep(CALL_DELAY_S)
        delayed.append(CALL_DELAY_S)
        return reduced

    functional.all_reduce = all_reduce


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "plant", "part"),
    [
        ("dp2", slow_rank, "imbalance"),
        ("tp2", slow_rank, "imbalance"),
        ("dp2-tp2", slow_rank, "imbalance"),
        ("pp2-dp2", slow_rank, "imbalance"),
        ("dp2-tp2", slow_tp, "exposed_communication/tp"),
        ("pp2", longer_stage, "bubble"),
        ("pp2-dp2", longer_stage, "bubble"),
    ],
)
def test_a_planted_delay_lands_in_its_own_part(
    layout: str, plant: Callable[[Any, Any, Delayed], object], part: str
) -> None:
    for attempt in range(MOST_TRIES):
        try:
            lands(layout, plant, part)
            return
        except AssertionError:
            if attempt == MOST_TRIES - 1:
                raise


def lands(layout: str, plant: Callable[[Any, Any, Delayed], object], part: str) -> None:
    case = case_of(layout)
    ranks = run_ranks(case.world_size, traced, layout, plant)
    records, delay_s = [record for record, _ in ranks], max(seconds for _, seconds in ranks)
    json.dumps(records)  # what a worker sends
    longest_s = max(record["step_s"] for record in records)
    metrics = derived(case, longest_s, records)
    parts = parts_of(metrics)
    assert delay_s >= 2 * FORWARD_DELAY_S
    assert sum(parts.values()) == pytest.approx(longest_s)
    assert parts[part] > 0.8 * delay_s
    assert all(seconds < 0.5 * parts[part] for name, seconds in parts.items() if name != part)
    if plant is slow_rank:
        assert "was for rank 1 (a)" in next(
            metric.basis for metric in metrics if metric.detail == {"part": "imbalance"}
        )
    axes = {axis for axis in ("pp", "dp", "tp") if case.point[axis] > 1}
    assert {name.split("/")[1] for name in parts if "/" in name} == axes


LOST = "the record 'exposed' of rank 0 is not what a rank leaves:"
UNTOLD = {"communication_s": 1.0, "compute_s": 5.0, "exposed_s": 1.0, "overlap_fraction": 0.0, "step_s": 10.0}
LINE: dict[str, Any] = {"axis": "dp", "first": 0, "way": "", "exposed_s": [1.0], "duration_s": [1.0]}


def traced_record(exposed_s: list[float]) -> dict[str, Any]:
    """A step of 10 s, of which 5 were computed."""
    line = {**LINE, "exposed_s": exposed_s, "duration_s": exposed_s}
    return {**UNTOLD, "transfers": [line]}


def test_parts_are_shares_of_the_traced_step_and_sum_to_the_measured_one() -> None:
    # the second rank is 2 s late; traced is 10 s, measured 1 s
    metrics = derived(case_of("dp2"), 1.0, [traced_record([1.0, 2.0]), traced_record([1.0, 0.0])])
    parts = parts_of(metrics)
    assert parts == {
        "compute": pytest.approx(0.5),
        "bubble": 0.0,
        "imbalance": pytest.approx(0.2),
        "rest": pytest.approx(0.2),
        "exposed_communication/dp": pytest.approx(0.1),
    }
    assert sum(parts.values()) == pytest.approx(1.0)
    (rest,) = (metric for metric in metrics if metric.detail == {"part": "rest"})
    assert rest.basis == (
        "its share of one traced step, which took 10.000 s with tracing, of the measured step time; mean rank"
    )


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        (7.0, {"compute": 5.0, "exposed_communication/dp": 1.0, "rest": 1.0}),  # 3 of 4 s were the profiler's
        (4.0, {"compute": 4.0 * 5 / 6, "exposed_communication/dp": 4.0 / 6, "rest": 0.0}),  # more than the host had
        (20.0, {"compute": 10.0, "exposed_communication/dp": 2.0, "rest": 8.0}),
    ],
)
def test_on_a_gpu_what_tracing_takes_is_the_hosts(step_s: float, expected: Seconds) -> None:
    """Its kernels are as long as without: of a step of 7 s, 5 of them computed, 3.5 were said to be."""
    on_gpu = replace(case_of("dp2"), device="cuda")
    metrics = derived(on_gpu, step_s, [traced_record([1.0])] * 2)
    parts = parts_of(metrics)
    assert {name: seconds for name, seconds in parts.items() if seconds or name in expected} == pytest.approx(expected)
    assert sum(parts.values()) == pytest.approx(step_s)
    said = "; what that is longer by is the host's, and taken from the rest" in metrics[0].basis
    assert said == (step_s < 10)


def test_the_imbalance_names_the_rank_that_was_waited_for() -> None:
    metrics = derived(case_of("dp2"), 1.0, [traced_record([1.0, 2.0]), traced_record([1.0, 0.0])])
    (imbalance,) = (metric for metric in metrics if metric.detail == {"part": "imbalance"})
    assert imbalance.basis.endswith("; of the waiting for ranks with the same work 100 % was for rank 1 (a)")


def test_a_run_that_recorded_no_transfers_has_no_parts() -> None:
    assert derived(case_of("dp2"), 1.0, [UNTOLD, traced_record([1.0])]) == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            {"axis": "<b>" * 1000},
            f"the trace holds transfers along '{'<b>' * 19}<b, which is no axis",
        ),
        ({"first": None}, f"{LOST} in 'transfers' 'first' is null, not a whole number"),
        ({"duration_s": [float("nan")]}, f"{LOST} in 'transfers' 'duration_s' is [NaN], not a number"),
        ({"duration_s": ["1"]}, f"{LOST} in 'transfers' 'duration_s' is [\"1\"], not a number"),
        ({"duration_s": [-1.0]}, "the trace holds -1.0 where seconds were to be"),
        (
            {"exposed_s": [9.0], "duration_s": [9.0]},
            "a rank computed for 5 s and communicated for 9 s in a step of 10 s",
        ),
    ],
)
def test_a_record_that_cannot_be_is_named(line: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        derived(case_of("dp2"), 1.0, [{**traced_record([1.0]), "transfers": [{**LINE, **line}]}, traced_record([1.0])])
    assert str(error.value) == sentence


def healthy(layout: str) -> Any:
    """The record of a step."""
    return traced(layout, lambda *_: None)[0]


def rows_of(layout: str, num_tokens: int) -> list[Row]:
    """The rows of a real step, as long as it took while it was traced."""
    case = case_of(layout)
    records = run_ranks(case.world_size, healthy, layout)
    step_s = max(record["step_s"] for record in records)
    rate = Metric("tokens_per_s_per_rank", "tokens/s", num_tokens / step_s / case.world_size)
    about = ("run", layout, "train_step", 1, "ok", case.point, 1, case.world_size, "here", "cpu")
    return [
        Row(*about, metric.name, metric.unit, metric.value, detail=metric.detail)
        for metric in (Metric("step_time", "s", step_s), rate, *derived(case, step_s, records))
    ]


@pytest.mark.gloo
def test_what_real_runs_lose_is_the_sum_of_its_parts() -> None:
    rows = [row for layout in ("tp1", "dp2-tp2", "pp4") for row in rows_of(layout, num_tokens=4 * 32)]
    step_s = {row.case: row.value or 0.0 for row in rows if row.metric == "step_time"}
    lost_s = dict.fromkeys(step_s, 0.0)
    for row in TrainStep.across(rows):
        if row.metric == "scaling_loss_part":
            lost_s[row.case] += row.value or 0.0
    ideal_s = step_s["tp1"] / 4
    assert lost_s["dp2-tp2"] == pytest.approx(step_s["dp2-tp2"] - ideal_s, rel=0.01)
    assert lost_s["pp4"] == pytest.approx(step_s["pp4"] - ideal_s, rel=0.01)
    assert lost_s["tp1"] == 0.0


class OneAxis:
    """A grid of which only the names are asked for, for transfers of no axis."""

    def names(self) -> dict[str, str]:
        return {}


def test_a_long_line_is_recorded_by_neighbours_that_sum_to_it() -> None:
    trace = StepTrace((), (), 1.0, (Transfer("world", "", 0.001, 0.002),) * (2 * LONGEST_LINE + 1))
    (line,) = transfers_of(trace, OneAxis())  # type: ignore[arg-type]
    assert len(line.exposed_s) == len(line.duration_s) <= LONGEST_LINE
    assert sum(line.exposed_s) == pytest.approx(0.001 * (2 * LONGEST_LINE + 1))
    assert (line.axis, line.first, line.way) == ("world", 0, "")
