"""A pipeline that computes in the order of another schedule is wrong, though its numbers are right."""

from __future__ import annotations

import pytest

from clusterbench.benchmarks.train_step import job_of
from clusterbench.cluster import Cluster
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.types import Place
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig

pytestmark = pytest.mark.gloo

OTHERS = {"interleaved_zero_bubble": "interleaved_1f1b", "1f1b": "gpipe", "zbv": "dualpipev"}
"""Schedules with as many stages in the same places."""


def verdicts(asked: dict[str, str]) -> dict[str, str]:
    """What is said of each schedule where torch was given the class of another."""
    from clusterbench.errors import WrongResult
    from clusterbench.model import stages
    from clusterbench.parallel import from_options
    from clusterbench.proof.order import check_order
    from clusterbench.training.step import TrainingStep

    said, healthy = {}, dict(SCHEDULES)
    for schedule, given in asked.items():
        stages.SCHEDULES = {**healthy, schedule: healthy[given]}  # type: ignore[attr-defined]
        job = make_job("pp2", micro_batch_size=1)
        rig = make_rig(job.layout)
        step = TrainingStep(job, from_options({"schedule": schedule}), rig.grid, rig.device)
        stages.SCHEDULES = healthy  # type: ignore[attr-defined]
        try:
            check_order(step, rig.device)
            said[f"{schedule} as {given}"] = ""
        except WrongResult as error:
            said[f"{schedule} as {given}"] = str(error)
    return said


def test_an_order_of_another_schedule_is_wrong_on_every_rank() -> None:
    ranks = run_ranks(2, verdicts, OTHERS)
    for said in ranks:
        assert all("does not compute in the order of its schedule" in words for words in said.values()), said
    assert "is 0F2, and should be 0B0" in ranks[0]["1f1b as gpipe"]


def test_every_schedule_is_in_its_own_order() -> None:
    for said in run_ranks(2, verdicts, {schedule: schedule for schedule in SCHEDULES}):
        assert set(said.values()) == {""}, said


def without_the_last() -> str:
    """What is said of a schedule whose last action does not come about."""
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.order import check_order
    from clusterbench.training.step import TrainingStep

    job = make_job("pp2", micro_batch_size=1)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    stages = step.assembly.stages
    assert stages is not None
    timeline = stages.timeline
    stages.timeline = lambda run: timeline(run)[:-1]  # type: ignore[method-assign]
    try:
        check_order(step, rig.device)
    except WrongResult as error:
        return str(error)
    return ""


def test_an_action_that_is_missing_at_the_end_is_wrong() -> None:
    for said in run_ranks(2, without_the_last):
        assert "action 8 of 8 is nothing, and should be " in said


def timed_in_another_order() -> str:
    """What the timeline of a job of eight micro-batches says where those of more than six go through gpipe."""
    from clusterbench.benchmarks.train_step import TrainStep
    from clusterbench.errors import WrongResult
    from clusterbench.job.passes import TIMELINE
    from clusterbench.model import stages

    place = Place(Cluster(1, 2, "cpu"), 1)
    (point,) = TrainStep(layouts=("pp2",), seq_len=16, global_batch_size=8).points(place)
    rig = make_rig(job_of(point).layout)
    healthy = stages.SCHEDULES
    stages.SCHEDULES = {**healthy, "1f1b": healthy["gpipe"]}  # type: ignore[attr-defined]
    try:
        step = TrainStep.prepare(rig, point)
    finally:
        stages.SCHEDULES = healthy  # type: ignore[attr-defined]
    try:
        step.passes[TIMELINE.name]()
    except WrongResult as error:
        return str(error)
    return ""


def test_the_job_itself_is_in_the_order_of_its_schedule_with_all_its_micro_batches() -> None:
    for said in run_ranks(2, timed_in_another_order):
        assert "pp2 does not compute in the order of its schedule: " in said
