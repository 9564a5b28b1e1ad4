"""What a pipeline was seen to compute when, against the same orders played with formula costs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from clusterbench.formulas import schedules
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.formulas.schedules.timeline import play
from clusterbench.model.stages import Stages
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig

pytestmark = pytest.mark.gloo

PLANTED_S = 0.02
SLOW_STAGE = 1


def timelines(names: list[str], planted: bool) -> dict[str, list[tuple[Any, ...]]]:
    """What this rank computed in one step of each schedule; a forward of one stage may sleep."""
    from clusterbench.model.decoder import Decoder
    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep

    original = Decoder.forward

    def sleepy(self: Any, x: Any) -> Any:
        if self.chunk.stage == SLOW_STAGE:
            time.sleep(PLANTED_S)
        return original(self, x)

    timeline_of = {}
    for schedule in names:
        job = make_job("pp2", micro_batch_size=1)
        rig = make_rig(job.layout)
        step = TrainingStep(job, from_options({"schedule": schedule}), rig.grid, rig.device)
        step()
        if planted:
            Decoder.forward = sleepy  # type: ignore[method-assign]
        assert step.assembly.stages is not None
        timeline_of[schedule] = [tuple(action) for action in step.assembly.stages.timeline(step)]
        Decoder.forward = original  # type: ignore[method-assign]
    return timeline_of


def test_every_schedule_is_seen_to_compute_in_its_order() -> None:
    ranks = run_ranks(2, timelines, list(SCHEDULES), False)
    for schedule in SCHEDULES:
        orders = schedules.order(schedule, 2, 4, schedules.default_chunks(schedule))
        for rank, planned in enumerate(orders):
            computed = ranks[rank][schedule]
            if schedule != "naive":  # which torch runs as four pipelines of one micro-batch each
                assert [action[:3] for action in computed] == [tuple(action) for action in planned], (schedule, rank)
            assert all(start_s <= end_s for _, _, _, start_s, end_s in computed)
            starts = [start_s for *_, start_s, _ in computed]
            assert starts == sorted(starts)


def test_a_sleep_in_one_stages_forward_is_seen_there_and_not_in_the_simulation() -> None:
    ranks = run_ranks(2, timelines, ["1f1b"], True)
    seconds: dict[tuple[str, int], list[float]] = {}
    for rank in ranks:
        for kind, stage, _, start_s, end_s in rank["1f1b"]:
            seconds.setdefault((kind, stage), []).append(end_s - start_s)
    assert min(seconds["F", SLOW_STAGE]) >= PLANTED_S
    # of the others the fastest: on a busy machine any of them may be made to wait
    assert min(seconds["F", 0]) < PLANTED_S
    assert min(seconds["B", 0]) < PLANTED_S
    assert min(seconds["B", SLOW_STAGE]) < PLANTED_S

    # The simulation is told what a forward and a backward cost, and not who slept.
    costs = {"F": min(seconds["F", 0]), "B": min(seconds["B", 0])}
    played = play(schedules.order("1f1b", 2, 4, 1), costs)
    assert played.makespan_s == pytest.approx(5 * (costs["F"] + costs["B"]))
    for rank in played.ranks:
        assert all(end_s - start_s < PLANTED_S for _, start_s, end_s in rank)
    # What was measured is longer by the sleeps, which follow one another on one rank.
    assert max(action[4] for rank in ranks for action in rank["1f1b"]) >= 4 * PLANTED_S


class Stage:
    """Computes 2 ms whenever it is asked to."""

    stage_index = 1

    def forward_one_chunk(self, microbatch: int) -> None:
        time.sleep(0.002)

    backward_one_chunk = backward_weight_one_chunk = forward_one_chunk


def test_what_a_rank_waits_for_between_two_actions_is_in_neither() -> None:
    stages = Stages.__new__(Stages)
    stages.stages, stages.device = [Stage()], torch.device("cpu")  # type: ignore[list-item]

    def step() -> None:
        time.sleep(0.05)
        stages.stages[0].forward_one_chunk(0)
        time.sleep(0.1)
        stages.stages[0].backward_one_chunk(0)
        time.sleep(0.05)

    forward, backward = stages.timeline(step)
    assert [action[:3] for action in (forward, backward)] == [("F", 1, 0), ("B", 1, 0)]
    assert 0.05 <= forward.start_s <= forward.end_s - 0.002
    assert backward.start_s - forward.end_s >= 0.1
    assert backward.end_s >= backward.start_s + 0.002
