"""The most a rank holds at one moment, against dry runs of llama-8b, and when that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbench.expected.memory import TOTAL, held_memory, not_predicted
from clusterbench.expected.step import expected_parts
from clusterbench.expected.total import fullest_moment
from clusterbench.job import TrainingJob
from clusterbench.job.passes import STATES
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, active_in, from_options, of_kind, part_of
from clusterbench.parallel.data import DataParallel
from clusterbench.shape import named_shape
from clusterbench.types import metric_key


def step(layout: str, shape: str = "llama-8b", **options: Any) -> tuple[list[Parallelism], TrainingJob]:
    """One micro-batch of 4,096 tokens for each dp rank, in bfloat16 on a GPU; of a pipeline's last stage."""
    parsed = ParallelLayout.parse(layout)
    micro_batches = options.pop("micro_batches", 1)
    job = TrainingJob(named_shape(shape), parsed, 4096, parsed.dp * micro_batches, 1, "bfloat16", device="cuda")
    active = active_in(parsed, from_options(options))
    return active, part_of(job, active, parsed.pp - 1)


@pytest.mark.parametrize(
    ("layout", "options", "dry_gb", "when"),
    [
        ("tp1", {}, 145.630, "backward of embedding"),
        ("tp1", {"recompute": "full"}, 145.630, "backward of embedding"),
        ("dp128-tp8+sp+zero3", {}, 5.950, "backward of the loss"),
    ],
)
def test_llama_8b_holds_what_dry_runs_say(layout: str, options: dict[str, Any], dry_gb: float, when: str) -> None:
    fullest = fullest_moment(*step(layout, **options))
    assert fullest.held / 1e9 == pytest.approx(dry_gb, rel=1e-3)
    assert fullest.when == when


def test_a_layer_that_is_gathered_again_is_there_as_it_came_and_taken_apart() -> None:
    """As a dry rank held it, on a GPU 1.7 % more than without."""
    shape = replace(named_shape("llama-tiny"), num_layers=2, num_kv_heads=8, vocab_size=512, ffn_hidden_size=512)
    job = TrainingJob(shape, ParallelLayout.parse("dp2+zero3"), 128, 2, 1, "bfloat16", device="cuda")
    fullest = fullest_moment(active_in(job.layout, from_options({})), job)
    assert fullest.held == pytest.approx(7_526_236, rel=0.0002)
    assert fullest.when == "the gather of a layer"


def test_peaks_of_categories_that_do_not_coincide_are_not_added_up() -> None:
    held = held_memory(*step("tp1"))
    total = held.pop(TOTAL)
    assert sum(held.values()) > 1.15 * total
    assert total > max(held.values())


def test_from_the_second_micro_batch_on_gradients_are_there() -> None:
    once, twice = (held_memory(*step("tp1", micro_batches=number)) for number in (1, 2))
    assert sum(once.values()) - once[TOTAL] > once[TOTAL]
    assert twice[TOTAL] > sum(size for category, size in twice.items() if category != TOTAL)


@pytest.mark.parametrize(
    ("layout", "options", "why"),
    [
        ("dp2+zero3", {"offload": True}, "offload moves states"),
        ("dp2", {"compress": "powersgd"}, "powersgd makes factors"),
        ("dp2", {"compress": "topk"}, "topk orders each gradient"),
        ("pp2", {"schedule": "zbv", "micro_batches": 4}, "zbv splits backward"),
        ("dp2", {"compile": True}, "torch.compile decides"),
        ("pp2", {"float8": "tensorwise", "micro_batches": 2}, "float8 rounds operands by way of float32 copies"),
    ],
)
def test_what_cannot_be_told_is_not(layout: str, options: dict[str, Any], why: str) -> None:
    active, job = step(layout, **options)
    assert why in not_predicted(job, active)[TOTAL]
    sharded, step_of_it = step("dp2+zero3")
    assert TOTAL not in not_predicted(step_of_it, sharded)


def test_gradients_of_experts_in_two_precisions_and_several_chunks_are_not_told() -> None:
    """In float32, with one chunk or without experts they are the formula's to the byte; so only this is left out."""
    moe = {"shape": "moe-tiny", "routing": "balanced", "micro_batches": 4}
    active, job = step("pp2-dp2+ep2+zero3", schedule="interleaved_1f1b", **moe)
    assert "in two precisions" in not_predicted(job, active)["gradients"]
    one_chunk, job_of_it = step("pp2-dp2+ep2+zero3", schedule="1f1b", **moe)
    assert "gradients" not in not_predicted(job_of_it, one_chunk)
    dense, dense_job = step("pp2-dp2+zero3", schedule="interleaved_1f1b", micro_batches=4)
    assert "gradients" not in not_predicted(dense_job, dense)


def test_what_experts_keep_in_float64_is_not_told_where_results_of_products_are_kept() -> None:
    """A right step of dp8+zero1 was wrong by 11.7 %: each expert's product was kept, and joined once more."""
    active, job = step("dp2", recompute="selective", shape="moe-tiny", routing="balanced")
    assert "no grouped product in float64" in not_predicted(replace(job, dtype="float64"), active)["activations"]
    assert not_predicted(replace(job, dtype="float32", device="cpu"), active) == {}
    dense, job = step("dp2", recompute="selective")
    assert not_predicted(replace(job, dtype="float64", device="cpu"), dense) == {}


def test_what_attention_holds_that_is_wide_beside_the_feed_forward_is_not_told() -> None:
    """Where it is computed again, of six heads of 32 beside 66 channels Ulysses held 43 % more than the formula.

    Beside 50 channels a right step of dp2-cp3+zero3 that gathers keys was wrong: it held 16.5 % more, with cp2 19.2 %.
    """
    for context in ("ulysses", "all_gather"):
        active, job = step("cp2", context=context, recompute="full")
        assert not_predicted(job, active) == {}
        wide = replace(job, shape=replace(job.shape, ffn_hidden_size=job.shape.hidden_size // 2))
        assert not_predicted(wide, active).keys() == {"activations", TOTAL}
    ring, job = step("cp2", context="ring")
    assert not_predicted(replace(job, shape=wide.shape), ring).keys() == {TOTAL}


def test_gradients_that_gloo_still_holds_with_the_next_are_allowed() -> None:
    """A busy machine held those of a tied table beside the sum over dp: 2,318,556 bytes for 2,177,880."""
    shape = replace(
        named_shape("llama-tiny"),
        num_layers=3,
        hidden_size=96,
        ffn_hidden_size=160,
        num_heads=8,
        num_kv_heads=1,
        vocab_size=500,
        head_dim=12,
        tied_embeddings=True,
    )
    layout = ParallelLayout.parse("pp2-dp2+zero1")
    limits = []
    for device, head_dim in (("cpu", 12), ("cuda", 16)):  # torch would fill 12 channels up, and nothing be predicted
        job = TrainingJob(replace(shape, head_dim=head_dim), layout, 64, 8, 1, "bfloat16", device=device)
        active = active_in(layout, from_options({"recompute": "full"}))
        part = part_of(job, active, 1)
        expected = expected_parts([part], [fullest_moment(active, part)], active)
        limits.append(expected[metric_key("memory_deviation", category=TOTAL)])
    assert 2_318_556 / 2_177_880 - 1 < limits[0].value < 0.15
    assert "of which Gloo may let go late, 187.50KiB" in limits[0].basis
    assert "Gloo" not in limits[1].basis


def test_gathered_logits_that_gloo_still_holds_with_the_next_ones_are_allowed() -> None:
    """Of 48 micro-batches one was gathered beside the one before: 24 % of the whole, 20 % of the activations."""
    shape = replace(named_shape("llama-tiny"), num_layers=2, hidden_size=32, ffn_hidden_size=64, vocab_size=3000)
    shape, layout = replace(shape, num_heads=12, num_kv_heads=12, head_dim=16), ParallelLayout.parse("tp2+sp")
    bands = {}
    for device, is_split in (("cpu", False), ("cpu", True), ("cuda", False)):
        job = TrainingJob(shape, layout, 64, 48, 1, "float32" if device == "cuda" else "float64", device=device)
        active = active_in(layout, from_options({"loss_parallel": is_split}))
        expected = expected_parts([job], [fullest_moment(active, job)], active)
        bands[device, is_split] = [
            expected[metric_key("memory_deviation", category=category)] for category in ("activations", TOTAL)
        ]
    assert [band.value for band in bands["cpu", False]] == pytest.approx([0.254635, 0.276081], rel=1e-4)
    assert all("gathered logits that Gloo lets go late" in band.basis for band in bands["cpu", False])
    others = [band for key, of_these in bands.items() if key != ("cpu", False) for band in of_these]
    assert all(band.value < 0.06 and "Gloo" not in band.basis for band in others)


def test_copies_of_buckets_that_ddp_still_holds_with_the_largest_are_allowed() -> None:
    """Right steps of dp6 were wrong by 3.58 %: on 5 of 6 ranks two of them were there at once."""
    active, job = step("dp6", shape="llama-tiny", compress="bf16")
    late = sum(sorted(of_kind(DataParallel, active).copies(job))[:-1])  # type: ignore[union-attr]
    expected = expected_parts([job], [fullest_moment(active, job)], active)
    band = expected[metric_key("memory_deviation", category=TOTAL)]
    assert band.value > 0.033
    assert band.value == pytest.approx(0.03 + late / held_memory(active, job)[TOTAL])
    assert "copies of buckets in bfloat16, of which DDP lets go at no fixed time" in band.basis
    plain, job = step("dp6", shape="llama-tiny")
    without = expected_parts([job], [fullest_moment(plain, job)], plain)
    assert without[metric_key("memory_deviation", category=TOTAL)].value == 0.03
    category = metric_key("memory_deviation", category="activations")
    assert expected[category].value == without[category].value


def test_what_float8_computes_with_is_no_mismatch_of_activations() -> None:
    """A run of pp2 with recompute: full was wrong by 31 %: copies of operands were the peak, and not what is kept."""
    active, job = step("pp2", float8="tensorwise", recompute="full", micro_batches=2)
    expected = expected_parts([job], [fullest_moment(active, job)], active)
    assert metric_key("memory_deviation", category="gradients") in expected
    assert metric_key("memory_deviation", category="activations") not in expected


@pytest.mark.parametrize(("device", "unknown"), [("cpu", set()), ("cuda", set(STATES))])
def test_states_in_host_memory_are_not_expected_on_a_card(device: str, unknown: set[str]) -> None:
    """An H200 held none of them, and was said to hold 100 % too little."""
    active, job = step("dp2+zero3", offload=True)
    assert not_predicted(replace(job, device=device), active).keys() - {TOTAL} == unknown
    assert (TOTAL in not_predicted(replace(job, device=device), active)) == (device == "cuda")
    kept, job = step("dp2+zero3")
    assert not_predicted(replace(job, device=device, dtype="bfloat16"), kept) == {}
