"""Gradients in bfloat16 of weights in float32: where they cannot be, and that cases without them are what they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from clusterbench.benchmarks.train_step import TrainStep, job_of
from clusterbench.cluster import Cluster
from clusterbench.expected.tolerances import rounding_of_summed_gradients
from clusterbench.job import TrainingJob
from clusterbench.model.assembly import Weight
from clusterbench.parallel import active_in, from_options
from clusterbench.trainers import trainers
from clusterbench.training.step import TrainingStep
from clusterbench.types import Place
from tests.training.jobs import make_job, objection_to

NARROW = {"dtype": "bfloat16", "gradient_dtype": "bfloat16"}
ASKED = "gradient_dtype bfloat16"


@pytest.mark.parametrize(
    ("layout", "options", "changes", "why"),
    [
        ("tp1", {}, {"dtype": "float32"}, f"{ASKED} is of steps in bfloat16, and dtype is float32"),
        (
            "dp2",
            {},
            {"precision": "pure_bfloat16"},
            f"{ASKED} changes nothing with precision pure_bfloat16, whose gradients are bfloat16 already",
        ),
        ("dp2", {"compress": "bf16"}, {}, f"compress bf16 rounds float32 gradients; with {ASKED} they are bfloat16"),
        (
            "dp2",
            {"compress": "powersgd"},
            {},
            f"compress powersgd rounds float32 gradients; with {ASKED} they are bfloat16",
        ),
        (
            "tp1",
            {"float8": "rowwise"},
            {},
            f"float8 rowwise and {ASKED}: how far both together may be from one rank was not measured",
        ),
        (
            "pp2-dp2+zero3",
            {},
            {},
            f"{ASKED} and +zero3 in a pipeline: FSDP then adds up whole gradients over micro-batches, and in what "
            "dtype no formula here follows; +zero1 does not",
        ),
    ],
)
def test_what_cannot_be_is_refused(layout: str, options: dict[str, Any], changes: Mapping[str, Any], why: str) -> None:
    assert objection_to((layout, options, {**NARROW, **changes})) == why


def test_plain_ddp_has_gradients_as_wide_as_its_weights() -> None:
    reason = trainers()["plain_ddp"]().objection(make_job("dp2", **NARROW), [])
    assert reason == f"trainer plain_ddp has gradients as wide as its weights; {ASKED.replace(' ', ' is ')}"


def test_at_its_default_it_is_in_no_point() -> None:
    place = Place(Cluster(1, 1, "cpu"), 1)
    (wide,), (narrow,) = (
        list(TrainStep(dtype="bfloat16", gradient_dtype=dtype).points(place)) for dtype in ("float32", "bfloat16")
    )
    assert {**wide, "gradient_dtype": "bfloat16"} == narrow
    assert "gradient_dtype" not in wide
    assert (job_of(wide).gradient_bytes, job_of(narrow).gradient_bytes) == (4, 2)


def test_the_twin_in_float64_is_as_it_was() -> None:
    assert make_job("dp2", gradient_dtype="bfloat16").gradient_bytes == 8


def test_what_sums_add_follows_from_micro_batches_and_ranks() -> None:
    def added(layout: str, name: str, **changes: Any) -> float:
        job: TrainingJob = make_job(layout, **NARROW, **changes)
        return 2**9 * rounding_of_summed_gradients(job, active_in(job.layout, from_options({})))[name]

    assert added("tp1", "head.weight") == 1  # two micro-batches: one addition, of the whole
    assert added("dp2", "head.weight") == pytest.approx(2**0.5)  # and one over ranks
    assert added("dp2+zero3", "head.weight") == 1  # shares add up in float32
    assert added("tp2+sp", "norm.weight") == pytest.approx(2**0.5)  # of each rank's own tokens
    assert added("tp2+sp", "head.weight") == 1
    assert added("dp2-tp2+sp+zero3", "norm.weight") == 1  # as wide as those shares
    # one rank adds up as many micro-batches of a model with experts as all ranks together
    assert added("dp2", "layers.0.feed_forward.experts.up", shape="moe-tiny") == 0
    assert rounding_of_summed_gradients(make_job("dp2", dtype="bfloat16"), ()) == {}


def test_gradients_are_those_of_the_copies_and_the_optimizer_steps_the_masters() -> None:
    step = TrainingStep(make_job(**NARROW), (), None, torch.device("cpu"))
    before = {weight.name: weight.value.clone() for weight in step.weights}
    step()
    assert {weight.gradient.dtype for weight in step.weights} == {torch.bfloat16}
    assert {weight.value.dtype for weight in step.weights} == {torch.float32}
    assert all(shares_memory(weight) for weight in step.weights)
    assert all(not torch.equal(weight.value, before[weight.name]) for weight in step.weights)


def shares_memory(weight: Weight) -> bool:
    handed_over = weight.parameter.grad
    return handed_over is not None and handed_over.data_ptr() == weight.gradient.data_ptr()
