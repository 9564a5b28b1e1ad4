"""A step's messages in their order: exactly those that a run is held against, each in the phase it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout, every_layout
from clusterbench.layout_view.step import Phase, phases_of, traffic_by_phase
from clusterbench.parallel import STEP, active_in, expected_traffic, from_options, objection_to, part_of
from clusterbench.shape import named_shape


def jobs(shape: str) -> Iterator[TrainingJob]:
    """A job on each layout of eight ranks on which the shape can be trained."""
    model = named_shape(shape)
    for layout in every_layout(8, model.num_experts):
        job = TrainingJob(model, layout, 256, 4 * layout.pp * layout.dp, 1, dtype="bfloat16")
        if objection_to(job, active_in(layout, from_options({}))) is None:
            yield job


def phases(text: str, shape: str | None = None, sequences: int = 8) -> dict[str, Phase]:
    layout = ParallelLayout.parse(text)
    job = None if shape is None else TrainingJob(named_shape(shape), layout, 256, sequences, 1, dtype="bfloat16")
    return {phase.words.name: phase for phase in phases_of(layout, job)}


@pytest.mark.parametrize("shape", ["llama-tiny", "llama-deep-tiny", "moe-tiny", "moe-shared-tiny"])
def test_the_phases_hold_every_expected_message_and_no_other(shape: str) -> None:
    for job in jobs(shape):
        active = active_in(job.layout, from_options({}))
        for stage in range(job.layout.pp):
            part = part_of(job, active, stage)
            found: dict[tuple[str, str], tuple[int, int]] = {}
            for message in chain.from_iterable(traffic_by_phase(active, part).values()):
                count, size = found.get((message.axis, message.op), (0, 0))
                found[message.axis, message.op] = count + message.count, size + message.size_bytes
            expected = {
                (message.axis, message.op): (message.count, message.size_bytes)
                for message in expected_traffic(active, part)
            }
            assert found == expected, f"{job.layout}, stage {stage}"


@pytest.mark.parametrize("shape", ["llama-tiny", "moe-tiny"])
def test_who_speaks_when_is_the_same_without_a_job_but_for_a_tied_embedding(shape: str) -> None:
    def speaking(layout: ParallelLayout, job: TrainingJob | None) -> set[tuple[str, str, str]]:
        return {
            (phase.words.name, message.axis, message.op)
            for phase in phases_of(layout, job)
            for message in phase.messages
        }

    assert not named_shape(shape).tied_embeddings
    for job in jobs(shape):
        of_ends = {("sum_ends", "ends", "all_reduce")} if job.layout.pp > 1 else set()
        assert speaking(job.layout, None) - speaking(job.layout, job) == of_ends


def test_a_tied_embedding_is_summed_over_the_ends() -> None:
    (message,) = phases("pp2", "llama-1b")["sum_ends"].messages
    assert (message.axis, message.count) == ("ends", 1)


def test_five_dimensions_speak_in_the_order_of_the_step() -> None:
    assert list(phases("pp2-dp2-cp2-tp2+sp+ep2+zero1", "moe-tiny")) == [
        "forward_tp",
        "forward_cp",
        "forward_ep",
        "forward_pp",
        "loss",
        "backward_ep",
        "backward_cp",
        "backward_tp",
        "backward_pp",
        "sum_tp",
        "sum_edp",
        "sum_dp_cp",
        "norm",
        "update",
        "share",
    ]


def test_forward_and_backward_of_two_slices_by_hand() -> None:
    # llama-tiny has 4 layers of hidden size 128: leaving attention, feed-forward and the embedding sums 256 tokens of
    # bfloat16 in forward; entering attention, feed-forward and the head does in backward. Between two ranks a link
    # carries an all-reduce once.
    layout = ParallelLayout.parse("tp2")
    job = TrainingJob(named_shape("llama-tiny"), layout, 256, 4, 1, dtype="bfloat16")
    crossed = 4 * (2 * job.shape.num_layers + 1)
    found = {phase.words.name: phase.messages for phase in phases_of(layout, job)}
    for name in ("forward_tp", "backward_tp"):
        (message,) = found[name]
        assert (message.op, message.count) == ("all_reduce", crossed)
        assert message.link_bytes == crossed * 256 * job.shape.hidden_size * 2


def test_a_pipeline_hands_on_as_much_as_it_hands_back() -> None:
    found = phases("pp4", "llama-tiny", sequences=16)
    (forward,), (backward,) = found["forward_pp"].messages, found["backward_pp"].messages
    assert (forward.count, forward.link_bytes) == (backward.count, backward.link_bytes)
    assert forward.count == 16
    assert (found["forward_pp"].words.flow, found["backward_pp"].words.flow) == ("forward", "backward")


def test_zero_says_what_travels_and_when() -> None:
    assert not {"gather", "share"} & set(phases("dp4"))
    assert "share" in phases("dp4+zero1")
    assert phases("dp4+zero2")["gather"].words.when.endswith(
        "in forward; they stay until backward is through with them"
    )
    assert phases("dp4+zero3")["gather"].words.when.endswith("in forward and again in backward")
    assert [message.op for message in phases("dp4+zero3")["reduce"].messages] == ["reduce_scatter"]


def test_without_a_job_there_is_no_figure() -> None:
    every = phases("pp2-dp2-cp2-tp2+sp+ep2+zero1").values()
    assert {(message.count, message.link_bytes) for phase in every for message in phase.messages} == {(None, None)}


def test_one_rank_has_no_message() -> None:
    (only,) = phases("tp1").values()
    assert (only.words.name, only.messages) == ("update", ())


def test_every_phase_has_words() -> None:
    seen: dict[str, Phase] = {}
    for layout in every_layout(32, num_experts=4):
        seen |= {phase.words.name: phase for phase in phases_of(layout, None)}
    seen |= phases("cp2-tp2", "llama-tiny") | phases("pp2-cp2")
    assert set(seen) == set(STEP)
    for phase in seen.values():
        assert phase.words.title[0].isupper()
        assert not phase.words.what.endswith(".")
