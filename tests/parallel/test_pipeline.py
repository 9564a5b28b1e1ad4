"""What a pipeline leaves to each rank, sends between them, holds and refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.expected.bubble import expected_bubble
from clusterbench.formulas.pipeline import layers_by_stage
from clusterbench.formulas.schedules import SCHEDULES
from clusterbench.formulas.schedules.memory import Full
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.job.layer_end import residual_bytes
from clusterbench.parallel import Twin, active_in, expected_memory, expected_traffic, from_options, part_of, pipeline
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.torch_release import makes_buffers_for_messages
from tests.training.jobs import make_job


def parts(layout: str, schedule: str = "1f1b", **changes: Any) -> list[TrainingJob]:
    job = make_job(layout, **{"micro_batch_size": 1, "global_batch_size": 8, **changes})
    active = active_in(job.layout, from_options({"schedule": schedule}))
    return [part_of(job, active, pp_rank) for pp_rank in range(job.layout.pp)]


def peaks(schedule: str, num_microbatches: int) -> list[float]:
    """Activations of each rank but for the batch itself, of which every rank has all micro-batches."""
    jobs = parts("pp4", schedule, shape="llama-tiny-deep", global_batch_size=num_microbatches)
    active = active_in(jobs[0].layout, from_options({"schedule": schedule}))
    batch = 2 * num_microbatches * 16 * 8
    return [expected_memory(active, job)["activations"] - batch for job in jobs]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_weight_is_on_one_rank(schedule: str) -> None:
    jobs = parts("pp2", schedule)
    held = [name for job in jobs for name in weight_shapes(job)]
    assert sorted(held) == sorted(weight_shapes(make_job()))
    assert [len(job.layers) for job in jobs] == [2, 2]
    assert sum(job.embeds for job in jobs) == sum(job.has_head for job in jobs) == 1


def test_chunks_go_round_in_a_loop_or_turn_in_a_v() -> None:
    assert [job.layers for job in parts("pp2", "interleaved_1f1b")] == [(0, 2), (1, 3)]
    assert [job.layers for job in parts("pp2", "zbv")] == [(0, 3), (1, 2)]
    assert [(job.embeds, job.has_head) for job in parts("pp2", "zbv")] == [(True, True), (False, False)]


def test_a_tied_embedding_is_on_both_ends() -> None:
    jobs = parts("pp4", shape="llama-tiny-tied")
    assert ["embedding.weight" in weight_shapes(job) for job in jobs] == [True, False, False, True]


def test_each_micro_batch_crosses_each_boundary_once_either_way() -> None:
    for schedule, boundaries in (("1f1b", 1), ("interleaved_1f1b", 3), ("zbv", 2)):  # in a V two chunks are neighbours
        crossed: Counter[str] = Counter()
        for job in parts("pp2", schedule, max_grad_norm=None):
            sent = {message.op: message for message in expected_traffic(active_in(job.layout, from_options({})), job)}
            assert sent.keys() >= {"send", "recv"}
            stream = 16 * 128 * 8
            for message in Pipeline(schedule=schedule).traffic(job):
                assert message.size_bytes == message.count * stream
                crossed[f"{message.op} {message.during}"] += message.count
        every = {f"{op} {way}_pp" for op in ("send", "recv") for way in ("forward", "backward")}
        assert crossed == dict.fromkeys(every, 8 * boundaries), schedule


def test_gpipe_holds_every_micro_batch_and_1f1b_as_many_as_there_are_stages() -> None:
    # Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1
    assert peaks("gpipe", 16)[0] > 1.9 * peaks("gpipe", 8)[0]
    # Beside them each stage but the first has a buffer for the input of every micro-batch, which torch makes at once;
    # from 2.15 on they come and go, but for those of the last stage, which the losses of a step hold.
    stream, rope = 16 * 128 * 8, 2 * 16 * 16 * 8
    more = [after - before for after, before in zip(peaks("1f1b", 16), peaks("1f1b", 8), strict=True)]
    at_once = 0 if makes_buffers_for_messages() else 8
    assert more == [0, at_once * stream, at_once * stream, 8 * stream]
    # The first rank holds four micro-batches, the third two; both have layers only. Beside them are two streams: the
    # addend of their last sum, and an output that was sent; from 2.15 on two of these as the pipeline fills.
    first, _, third, _ = (peak - rope - (2 + (not at_once)) * stream for peak in peaks("1f1b", 8))
    assert first == pytest.approx(2 * (third - max(0, at_once - 2) * stream))


def test_where_torch_lets_go_of_what_1f1b_sent_most_is_held_when_the_pipeline_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With torch 2.15: by then it has two outputs, and one behind a later forward, though more have begun."""
    monkeypatch.setattr(pipeline, "makes_buffers_for_messages", lambda: True)
    assert peaks("1f1b", 5)[0] == peaks("1f1b", 4)[0]


@pytest.mark.parametrize(("device", "comes_late"), [("cpu", False), ("cpu", True), ("cuda", False), ("cuda", True)])
def test_gradients_that_stages_sent_back_stay_where_gloo_or_the_schedule_holds_them(
    monkeypatch: pytest.MonkeyPatch, device: str, comes_late: bool
) -> None:
    """With torch 2.15 of interleaved stages over NCCL, too: 14 messages of 8 micro-batches on the last of two ranks."""
    monkeypatch.setattr(pipeline, "makes_buffers_for_messages", lambda: comes_late)
    job = replace(make_job("pp2"), device=device)
    at = Full("B", 1, {1: 2, 3: 0}, {1: 8, 3: 8})
    back = Pipeline(schedule="interleaved_1f1b").sent_back(job, at)
    assert back == 14 * residual_bytes(job) * (device == "cpu" or comes_late)


def test_a_twin_has_two_layers_in_each_stage_and_a_micro_batch_more_than_fill_the_pipeline() -> None:
    assert Pipeline(schedule="1f1b").twin(make_job("pp2")) == Twin(4, 3)
    assert Pipeline(schedule="1f1b").twin(make_job("pp4")) == Twin(8, 5)
    assert Pipeline(schedule="dualpipev").twin(make_job("pp2")) == Twin(8, 5)
    deep = make_job("pp2", shape="llama-tiny-deep")
    assert Pipeline(schedule="looped_bfs", chunks_per_rank=4).twin(deep) == Twin(16, 3)


def test_a_twin_is_as_uneven_as_its_job() -> None:
    for num_layers, twin in ((126, 30), (127, 31), (128, 32), (17, 17)):
        job = make_job("pp16")
        job = replace(job, shape=replace(job.shape, num_layers=num_layers))
        assert Pipeline().twin(job).num_layers == twin
        more = [[len(layers) - num // 16 for layers in layers_by_stage(num, 16)] for num in (num_layers, twin)]
        assert more[0] == more[1] or num_layers % 16 == 0


def test_layers_that_do_not_come_out_even_are_fewer_at_the_ends() -> None:
    # Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2: one layer fewer on the first and on the last stage
    assert [len(job.layers) for job in uneven("pp16", 126)] == [7, *[8] * 14, 7]
    assert [len(job.layers) for job in uneven("pp3", 16)] == [5, 6, 5]
    assert [job.layers for job in uneven("pp2", 5, "interleaved_1f1b")] == [(0, 3), (1, 2, 4)]
    assert [job.layers for job in uneven("pp2", 5, "zbv")] == [(0, 4), (1, 2, 3)]
    every = [(layers, stages) for stages in range(1, 20) for layers in range(stages, 90)]
    for num_layers, stages in every:
        lengths = [len(layers) for layers in layers_by_stage(num_layers, stages)]
        assert sum(lengths) == num_layers
        assert max(lengths) - min(lengths) <= 1
        assert lengths[-1] == min(lengths) >= 1


def uneven(layout: str, num_layers: int, schedule: str = "gpipe") -> list[TrainingJob]:
    job = make_job(layout, micro_batch_size=1, global_batch_size=8)
    job = replace(job, shape=replace(job.shape, num_layers=num_layers))
    active = active_in(job.layout, from_options({"schedule": schedule}))
    return [part_of(job, active, pp_rank) for pp_rank in range(job.layout.pp)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_layer_is_on_one_rank_where_they_do_not_come_out_even(schedule: str) -> None:
    jobs = uneven("pp2", 7, schedule)
    assert sorted(layer for job in jobs for layer in job.layers) == [*range(7)]
    whole = weight_shapes(jobs[0].uncut)
    assert sorted(name for job in jobs for name in weight_shapes(job)) == sorted(whole)


def test_an_uneven_pipeline_waits_for_its_longest_stage() -> None:
    job = make_job("pp3", micro_batch_size=1, global_batch_size=24)
    even, odd = (replace(job, shape=replace(job.shape, num_layers=number, vocab_size=1)) for number in (15, 16))
    active = active_in(job.layout, from_options({"schedule": "gpipe"}))
    of_even, of_odd = expected_bubble(active, even), expected_bubble(active, odd)
    assert of_even is not None
    assert of_odd is not None
    assert of_even.value == pytest.approx(2 / 26)
    # With next to no head the stages take 5, 6 and 5: 24 micro-batches of 6, and the first of 5 on either side.
    assert of_odd.value == pytest.approx(1 - 24 * (5 + 6 + 5) / 3 / (24 * 6 + 10), abs=1e-3)
    assert "do not come out even" in of_odd.basis


@pytest.mark.parametrize(
    ("layout", "options", "changes", "reason"),
    [
        (
            "pp4",
            {},
            {},
            "1f1b needs as many microbatches as stages: at least 4, not 2; gpipe takes fewer (global_batch_size 4 = "
            "micro_batch_size 2 x gradient_accumulation_steps 2 x dp 1)",
        ),
        ("pp3", {"schedule": "gpipe"}, {}, None),
        (
            "pp5",
            {"schedule": "gpipe"},
            {},
            "pp5 with 1 chunk per rank has 5 stages, and llama-tiny has 4 layers: every stage needs one",
        ),
        (
            "pp2-dp2+zero2",
            {"schedule": "zbv"},
            {"micro_batch_size": 1},
            "zbv computes the gradients of weights apart from those of inputs, and with +zero2 FSDP would reduce them "
            "before they are there; +zero1 does not",
        ),
        (
            "pp2",
            {"schedule": "zbv"},
            {"shape": "llama-tiny-tied", "micro_batch_size": 1},
            "zbv puts the first and the last stage on one rank, where the tied embedding of llama-tiny would be twice",
        ),
        (
            "pp2",
            {"schedule": "1f1b", "chunks_per_rank": 2},
            {},
            "1f1b needs exactly 1 chunk per rank, not 2",
        ),
        # reasons that no batch mends come before those of the batch
        ("pp5", {}, {}, "pp5 with 1 chunk per rank has 5 stages, and llama-tiny has 4 layers: every stage needs one"),
        ("pp2-dp2+zero1", {"schedule": "zbv"}, {"micro_batch_size": 1}, None),
        ("pp2-dp2+zero3", {"schedule": "looped_bfs"}, {}, None),
    ],
)
def test_what_cannot_be_piped_is_said(
    layout: str, options: dict[str, Any], changes: dict[str, Any], reason: str | None
) -> None:
    assert Pipeline(**options).objection(make_job(layout, **changes)) == reason
