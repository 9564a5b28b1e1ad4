"""What is predicted of a training case beside its speed: balance, bubble, the longest sequence, the largest part."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cluster import Cluster
from clusterbench.types import Expected, Place


def predicted(layout: str, device: Any = "cpu", gpu_name: str = "", **options: Any) -> dict[str, Expected]:
    benchmark = TrainStep.from_options({"layouts": (layout,), "global_batch_size": 64, **options})
    place = Place(Cluster(8, 8, device, gpu_name=gpu_name or None), 8)
    (point,) = benchmark.points(place)
    assert benchmark.objection(point, place) is None
    return dict(benchmark.predict(point, place))


def test_a_contiguous_ring_is_predicted_to_be_unbalanced() -> None:
    expected = predicted("cp4", context="ring")["attention_imbalance"]
    assert (expected.value, expected.basis) == (1.75, "squares of the causal mask, ring on cp4")
    assert predicted("cp4", context="zigzag")["attention_imbalance"].value == 1.0
    assert "attention_imbalance" not in predicted("cp4", context="ulysses")


def test_the_longest_sequence_grows_with_recomputation_and_stays_unknown_without_a_known_gpu() -> None:
    options = {"shape": "llama-8b", "dtype": "bfloat16", "seq_len": 8192, "device": "cuda"}
    h100 = {"gpu_name": "NVIDIA H100 80GB HBM3", **options}
    plain, full = (
        predicted("cp8+zero3", **h100, recompute=recompute)["longest_seq_len"].value for recompute in ("none", "full")
    )
    assert 8192 < plain < full
    assert "longest_seq_len" not in predicted("cp8+zero3", **options)


def test_of_a_pipeline_the_fullest_rank_is_expected() -> None:
    first_and_last = predicted("pp4", schedule="gpipe", micro_batch_size=16)
    one_rank = predicted("tp1", micro_batch_size=16)
    held = first_and_last["memory_at_rest[category=parameters]"].value
    assert one_rank["memory_at_rest[category=parameters]"].value / 4 < held


def test_the_bubble_is_that_of_the_schedule() -> None:
    bubble = predicted("pp4", schedule="1f1b", micro_batch_size=8)["bubble[source=measured]"]
    assert bubble.value == pytest.approx(3 / 11)


def test_the_papers_zero_stands_beside_pytorchs() -> None:
    stage_2 = predicted("dp8+zero2")["peak_memory[category=parameters]"].basis
    assert "ZeRO's paper (arXiv:1910.02054, section 5), stage 2: whole on every rank" in stage_2
    stage_3 = predicted("dp8+zero3")["peak_memory[category=parameters]"].basis
    assert "stage 3: 1/8 of it" in stage_3


def test_bytes_that_a_router_decides_are_about() -> None:
    options = {"shape": "moe-tiny", "micro_batch_size": 2}
    assert predicted("dp4+ep2", **options)["traffic_bytes[axis=ep]"].basis.startswith("about; bytes of an even load")
    balanced = predicted("dp4+ep2", routing="balanced", **options)["traffic_bytes[axis=ep]"].basis
    assert not balanced.startswith("about")


def test_where_activations_cannot_be_told_none_are_expected() -> None:
    activations = "peak_memory[category=activations]"
    expected = predicted("pp4", micro_batch_size=8)
    assert activations in expected
    for options in ({"compile": True}, {"schedule": "zbv", "shape": "llama-deep-tiny"}):
        assert activations not in predicted("pp4", micro_batch_size=8, **options)
