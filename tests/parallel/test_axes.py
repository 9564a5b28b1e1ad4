"""Every axis over which a parallelism sums or cuts has its place in the orders of the step."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.layout import AXES, GROUPS, VIEWS, every_layout
from clusterbench.parallel import (
    NORM_ORDER,
    STEP,
    SUM_ORDER,
    Parallelism,
    active_in,
    expected_traffic,
    from_options,
    objection_to,
    parallelisms,
    traffic_of_step,
)
from clusterbench.shape import named_shape


def jobs() -> Iterator[tuple[TrainingJob, list[Parallelism]]]:
    """Jobs on every layout of eight ranks, also with groups of two shards where there are more ranks to share."""
    for shape in map(named_shape, ("llama-tiny", "moe-tiny", "llama-1b")):
        for layout in every_layout(8, shape.num_experts):
            job = TrainingJob(shape, layout, 256, 4 * layout.pp * layout.dp, 1)
            for options in (
                {},
                {"shard_group_size": 2},
                {"aux_loss": 0.1},
                {"context": "ulysses"},
                {"context": "all_gather"},
            ):
                active = active_in(layout, from_options(options))
                if objection_to(job, active) is None:
                    yield job, active


def test_gradients_are_summed_over_every_axis_that_leaves_them_in_parts() -> None:
    found = {
        axis
        for job, active in jobs()
        for name in weight_shapes(job)
        for parallelism in active
        for axis in parallelism.sums(name, job)
    }
    assert found == set(SUM_ORDER)


def test_squares_are_summed_over_every_axis_that_cuts_a_weight() -> None:
    found = {
        axis
        for job, active in jobs()
        for name in weight_shapes(job)
        for parallelism in active
        for axis in parallelism.splits(name, job)
    }
    assert found == set(NORM_ORDER)


def test_everything_that_is_sent_has_its_phase_in_the_step_and_its_parallelism_says_which() -> None:
    for job, active in jobs():
        said = {
            words.name for parallelism in active for words in parallelism.phases(job.layout, "every micro-batch")
        } | {"norm"}
        assert said <= set(STEP)
        assert {sent.during for sent in traffic_of_step(active, job) if sent.count} <= said, job.layout


def test_each_axis_is_owned_by_one_parallelism() -> None:
    owned = [axis for kind in parallelisms().values() for axis in kind.meanings]
    assert sorted(owned) == sorted((*AXES, *VIEWS))


def test_every_axis_along_which_something_is_sent_has_a_name() -> None:
    found = {sent.axis for job, active in jobs() for sent in expected_traffic(active, job)}
    assert found <= set(GROUPS)
    assert {*SUM_ORDER, *NORM_ORDER} <= set(GROUPS)
