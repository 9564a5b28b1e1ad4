"""A timed step shows its first and last loss and norm, and is wrong where one is not a number."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clusterbench.job.passes import FIRST, kind_of_projection
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig

pytestmark = pytest.mark.gloo


def confirmed(layout: str, poisoned_rank: int | None, dtype: str) -> Any:
    """What the confirmation says after a step, with one weight of one rank NaN before it."""
    import torch

    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, dtype=dtype)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    timed = TimedStep(step)
    if rig.rank == poisoned_rank:
        with torch.no_grad():
            next(iter(step.weights)).value.fill_(math.nan)
    try:
        timed()
        timed()
        found = timed.confirm(rig, is_first=True)
        again = timed.confirm(rig, is_first=False)
        kept = {name: value for name, value in found.items() if not kind_of_projection(name)}
        assert again.keys() == kept.keys() - {"last_update"}
        assert (kept == found) == (rig.rank != 0)  # rank 0 alone records gradients
        return kept
    except WrongResult as error:
        return str(error)


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["dp2", "tp2", "pp2", "dp2+zero3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loss_that_is_not_finite_is_wrong_on_every_rank(layout, dtype):
    for verdict in run_ranks(2, confirmed, layout, 0, dtype):
        assert verdict.startswith(f"the loss of {layout} is not finite: nan on rank 0 after 1 step.")


@pytest.mark.parametrize("layout", ["dp2", "tp2", "pp2", "cp2"])
def test_losses_and_norms_are_those_of_the_whole_batch_on_every_rank(layout):
    first, second = run_ranks(2, confirmed, layout, None, "float64")
    alone = run_ranks(1, confirmed, "tp1", None, "float64")[0] if layout != "dp2" else None
    assert first == second
    assert first.pop("last_update") < 1  # roundings, which go elsewhere on other ranks
    assert first.pop("clipping") < 1e-6
    assert first["num_updates"] == 2
    assert first["loss"] < first["first_loss"]  # of the same batch again
    if alone is not None:  # dp2 of make_job has twice the sequences
        assert alone.pop("last_update") < 1
        assert alone.pop("clipping") < 1e-6
        assert first == pytest.approx(alone, rel=1e-12)


def after_more_calls(layout: str, asked: int, calls: int, poisoned: bool) -> Any:
    """What the confirmation says where more was timed than the case asked for."""
    import torch

    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    timed = TimedStep(step, asked)
    for _ in range(calls - 1):
        timed()
    if poisoned:
        with torch.no_grad():
            next(iter(step.weights)).value.fill_(math.nan)
    timed()
    try:
        return timed.confirm(rig, is_first=False)
    except WrongResult as error:
        return str(error)


def test_losses_are_compared_after_as_many_updates_however_many_more_are_timed():
    (three,), (of_five,), (five,) = (
        run_ranks(1, after_more_calls, "tp1", asked, calls, False) for asked, calls in ((3, 3), (3, 5), (5, 5))
    )
    assert all(seen.pop("clipping") < 1e-6 for seen in (three, of_five, five))  # of the last call of all
    assert of_five == three
    assert of_five["num_updates"] == 3
    assert five["loss"] != three["loss"]


def test_fewer_calls_than_were_asked_for_are_wrong():
    (verdict,) = run_ranks(1, after_more_calls, "tp1", 5, 3, False)
    assert verdict == (
        "rank 0 made 3 calls of the 5 that were asked for of tp1. Samples are of steps that did not run."
    )


def with_calls_made(layout: str, calls: int, made: int) -> Any:
    """What the confirmation says of so many calls where the loop that times them says what it made."""
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout)
    rig = make_rig(job.layout)
    timed = TimedStep(TrainingStep(job, from_options({}), rig.grid, rig.device), 2)
    for _ in range(calls):
        timed()
    rig.made_calls = made
    try:
        return timed.confirm(rig, is_first=False)
    except WrongResult as error:
        return str(error)


def test_more_calls_than_the_loop_made_are_wrong():
    """Each sample is then of several steps, whose losses are as right as those of one."""
    (right,), (twice,) = (run_ranks(1, with_calls_made, "tp1", calls, 3) for calls in (3, 6))
    assert right["num_updates"] == 2
    assert twice == "rank 0 made 6 calls of tp1 in what counts as 3. Samples are of more than one step."


def with_tokens_counted_for_each_rank(layout: str) -> Any:
    """What the confirmation says where a batch is counted once for each rank that has a part of it."""
    from clusterbench.errors import WrongResult
    from clusterbench.job import TrainingJob
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout)
    rig = make_rig(job.layout)
    timed = TimedStep(TrainingStep(job, from_options({}), rig.grid, rig.device), 1)
    timed()
    right = TrainingJob.tokens_per_step
    TrainingJob.tokens_per_step = property(lambda job: right.fget(job) * job.layout.world_size)
    try:
        return timed.confirm(rig, is_first=False)
    except WrongResult as error:
        return str(error)
    finally:
        TrainingJob.tokens_per_step = right


@pytest.mark.parametrize("layout", ["dp2", "cp2", "tp2", "pp2"])
def test_a_step_that_counts_other_tokens_than_it_computed_on_is_wrong(layout):
    tokens = 128 if layout == "dp2" else 64
    for verdict in run_ranks(2, with_tokens_counted_for_each_rank, layout):
        assert verdict == (
            f"a call of {layout} computed on {tokens} tokens, by those of rank 0, and {2 * tokens} are counted of a "
            "step. Its tokens/s are not those of training."
        )


def test_a_loss_that_is_not_finite_long_after_is_wrong_too():
    (verdict,) = run_ranks(1, after_more_calls, "tp1", 3, 5, True)
    assert verdict.startswith("the loss of tp1 is not finite: nan on rank 0 after 5 steps.")


def with_less_work(layout: str, less: str) -> Any:
    """What the confirmation says where some of the calls between the first and the last do less than a step."""
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, global_batch_size=16)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    timed, whole = TimedStep(step, 4), step.micro_batches
    for call in range(4):
        is_less = call in (1, 2)
        if less == "micro-batches":
            step.micro_batches = whole[:1] if is_less else whole
        if less == "calls" and is_less:
            timed._calls += 1
            continue
        timed()
    try:
        return timed.confirm(rig, is_first=False)
    except WrongResult as error:
        return str(error)


@pytest.mark.matrix
@pytest.mark.parametrize("less", ["micro-batches", "calls"])
@pytest.mark.parametrize("layout", ["dp2", "dp2+zero3", "tp2"])
def test_calls_that_do_less_than_a_step_are_wrong(layout, less):
    for verdict in run_ranks(2, with_less_work, layout, less):
        assert verdict.startswith(f"4 calls of {layout} made "), verdict
        assert verdict.endswith(" forwards too few on rank 0. The time of such calls is not that of training.")


def with_an_unbalanced_layer(weighed: dict[str, float]) -> Any:
    """What the confirmation says where the last layer, behind those of a twin, weighs its load-balancing loss so."""
    from clusterbench.errors import WrongResult
    from clusterbench.parallel import active_in, from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job("dp2", shape="moe-tiny", dtype="float32")
    rig, every = make_rig(job.layout), from_options({"aux_loss": 0.01})
    step = TrainingStep(job, every, rig.grid, rig.device)
    for name, number in weighed.items() if rig.rank == 1 else ():
        setattr(list(step.assembly.layers())[-1].feed_forward, name, number)
    timed = TimedStep(step, 2, active_in(job.layout, every))
    timed()
    timed()
    try:
        return timed.confirm(rig, is_first=False)
    except WrongResult as error:
        return str(error)


@pytest.mark.parametrize("weighed", [{}, {"aux_loss": 0.0}, {"aux_scale": 1.0}], ids=str)
def test_a_layer_that_balances_no_load_is_wrong_though_no_loss_shows_it(weighed):
    for verdict in run_ranks(2, with_an_unbalanced_layer, weighed):
        said = "1 layer of dp2 on rank 1 weighed the load-balancing loss otherwise than aux_loss says."
        assert (verdict == said) == bool(weighed)


def without_some_backwards(layout: str, dtype: str) -> Any:
    """What the confirmation says where two of the calls go back through every second micro-batch only."""
    import torch

    from clusterbench.errors import WrongResult
    from clusterbench.parallel import from_options
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, global_batch_size=16, dtype=dtype)
    rig = make_rig(job.layout)
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    timed, loss, losses = TimedStep(step, 4), step.loss, [0]

    def sometimes_without_gradient(output: Any, labels: Any) -> Any:
        losses[0] += 1
        found = loss(output, labels)
        return found.detach() + torch.zeros((), requires_grad=True) if losses[0] % 2 else found

    for call in range(4):
        step.loss = sometimes_without_gradient if call in (1, 2) else loss  # type: ignore[method-assign]
        timed()
    try:
        return timed.confirm(rig, is_first=False)
    except WrongResult as error:
        return str(error)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["dp2", "tp2"])
def test_calls_that_do_not_go_back_through_every_micro_batch_are_wrong(layout, dtype):
    """Half of all backwards were missing behind the first steps, and in bfloat16 the last loss was near enough."""
    for verdict in run_ranks(2, without_some_backwards, layout, dtype):
        missing = 8 if layout == "tp2" else 4
        assert verdict == (
            f"4 calls of {layout} made {missing} backwards too few on rank 0. The time of such calls is not that of "
            "training."
        )


def with_half_a_gradient(halved: bool) -> Any:
    """What the confirmation says, and one rank behind the clock, where one call's gradients are half as large."""
    from clusterbench.parallel import from_options
    from clusterbench.proof.own_size import on_one_rank
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job("dp2", global_batch_size=16, dtype="bfloat16")
    rig = make_rig(job.layout)
    rig.asked_calls = 4
    step = TrainingStep(job, from_options({}), rig.grid, rig.device)
    timed, loss = TimedStep(step, rig.asked_calls), step.loss
    for call in range(rig.asked_calls):
        step.loss = (lambda output, labels: loss(output, labels) * 0.5) if halved and call == 2 else loss  # type: ignore[method-assign]
        timed()
    step.loss = loss  # type: ignore[method-assign]
    return timed.confirm(rig, is_first=False), on_one_rank(step, from_options({}), rig)


@pytest.mark.parametrize("halved", [False, True])
def test_every_call_shows_its_own_norm(halved):
    """In bfloat16 the last loss and norm say nothing of what one call before left out: Adam takes any scale."""
    (seen, alone), (other, _) = run_ranks(2, with_half_a_gradient, halved)
    assert seen["norm"] == pytest.approx(alone["norm"], rel=0.1)
    assert seen["update_2_norm"] == pytest.approx(alone["update_2_norm"], rel=0.1)
    assert (abs(seen["update_3_norm"] / alone["update_3_norm"] - 1) < 0.1) == (not halved)
    assert not {"update_2_norm", "update_3_norm"} & other.keys()


def test_gradients_are_looked_at_where_that_is_not_timed() -> None:
    (with_them,), (without,) = (run_ranks(1, _names_of_gradients, sketches) for sketches in (True, False))
    assert (with_them >= 9 * 12, without) == (True, 0)


def _names_of_gradients(sketches: bool) -> int:
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job()
    rig = make_rig(job.layout)
    timed = TimedStep(TrainingStep(job, (), rig.grid, rig.device), 2, sketches=sketches)
    timed()
    timed()
    return sum(bool(kind_of_projection(name, FIRST)) for name in timed.confirm(rig, is_first=True))
