"""What holds for every trainer there is: a new one is tested here without an edit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.discover import summary
from clusterbench.expected.tolerances import allowed_of, comparisons_of
from clusterbench.job import OURS
from clusterbench.parallel import active_in, from_options
from clusterbench.trainers import trainers
from tests.ranks import run_ranks
from tests.training.jobs import make_job, parity_of

EVERY = sorted(trainers())


def taken_by(name):
    """The first of some jobs on two ranks that a trainer runs."""
    dtype = "float64" if trainers()[name].runs_in_float64 else "float32"
    jobs = [make_job(layout, dtype=dtype) for layout in ("dp2", "dp2+zero1", "dp2+zero3")]
    return next(job for job in jobs if not trainers()[name]().objection(job, active_in(job.layout, from_options({}))))


def test_ours_is_among_them():
    assert OURS in EVERY


@pytest.mark.parametrize("name", EVERY)
def test_it_says_what_it_is(name):
    assert summary(trainers()[name]).endswith(".")


@pytest.mark.parametrize("name", EVERY)
def test_it_takes_a_step_or_says_why_not(name):
    for layout in ("tp1", "dp2", "tp2", "pp2", "dp2+zero3"):
        job = make_job(layout)
        reason = trainers()[name]().objection(job, active_in(job.layout, from_options({})))
        assert reason is None or layout in reason


@pytest.mark.parametrize("name", EVERY)
def test_a_batch_that_does_not_come_out_even_is_refused(name):
    job = replace(taken_by(name), global_batch_size=3)
    reason = trainers()[name]().objection(job, active_in(job.layout, from_options({})))
    assert reason is not None
    assert "global_batch_size 3" in reason


@pytest.mark.gloo
@pytest.mark.parametrize("name", EVERY)
def test_it_computes_what_one_rank_of_ours_computes(name):
    job = taken_by(name)
    evidence = run_ranks(2, parity_of, str(job.layout), {}, {"dtype": job.dtype}, name)[0]
    assert isinstance(evidence, dict), evidence
    assert max(evidence.values()) < (1e-11 if job.dtype == "float64" else 1e-3)


def test_what_cannot_run_in_float64_is_proven_in_its_own_dtype_and_says_so():
    job, every = make_job("dp2", shape="moe-tiny", dtype="float32"), from_options({"routing": "real"})
    assert [comparison.dtype for comparison in comparisons_of(job, every, runs_in_float64=True)] == [
        "float64",
        "float32",
    ]
    assert [comparison.dtype for comparison in comparisons_of(job, every, runs_in_float64=False)] == ["float32"]
    limit = allowed_of(job, every, runs_in_float64=False)["parity_loss"]
    assert limit.basis.endswith("; proven in float32 alone: this trainer's step does not run in float64")
