"""What ZeRO 2 and 3 leave on a rank, send and refuse, against the paper and Megatron's and PyTorch's words."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from clusterbench.job import weight_shapes
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import (
    active_in,
    expected_at_rest,
    expected_memory,
    expected_traffic,
    from_options,
    local_weights,
    part_of,
)
from clusterbench.parallel.fsdp import FullySharded
from clusterbench.torch_release import adds_up_in_parameters
from tests.training.jobs import make_job


def sent(layout: str, options: dict[str, Any] | None = None, pp_rank: int = 0, **changes: Any) -> dict[str, float]:
    """Bytes on the busiest link by axis, without those of the norm."""
    job = make_job(layout, max_grad_norm=None, **changes)
    active = active_in(job.layout, from_options(options or {}))
    by_axis: dict[str, float] = {}
    for message in expected_traffic(active, part_of(job, active, pp_rank)):
        by_axis[message.axis] = by_axis.get(message.axis, 0) + message.bytes_on_link(job.layout)
    return by_axis


def counts(options: dict[str, Any], layout: str, pp_rank: int, **changes: Any) -> dict[str, int]:
    job = make_job(layout, micro_batch_size=1, **changes)
    active = active_in(job.layout, from_options(options))
    found = expected_traffic(active, part_of(job, active, pp_rank))
    return {message.op: message.count for message in found if message.axis == "dp" and message.op != "all_reduce"}


PARAMETERS = make_job().shape.num_parameters * 8


def test_stages_1_and_2_send_what_data_parallelism_sends_and_stage_3_half_more() -> None:
    # Rajbhandari et al. 2019, arXiv:1910.02054, section 7: 2, 2 and 3 times the parameters; here for one micro-batch,
    # and with a ring's (d-1)/d. torch's ZeRO 1 sends whole weights, and so 3.
    options = {"global_batch_size": 8}
    ring = PARAMETERS * 3 / 4
    assert sent("dp4", **options)["dp"] == pytest.approx(2 * ring)
    assert sent("dp4+zero2", **options)["dp"] == pytest.approx(2 * ring)
    # what is around the layers is not gathered again
    around = (2 * make_job().shape.vocab_size + 1) * make_job().shape.hidden_size * 8 * 3 / 4
    assert sent("dp4+zero3", **options)["dp"] == pytest.approx(3 * ring - around)


def test_gradients_are_reduced_in_every_micro_batch() -> None:
    once, twice = sent("dp2+zero2", global_batch_size=4)["dp"], sent("dp2+zero2", global_batch_size=8)["dp"]
    assert twice == 2 * once
    assert sent("dp2", global_batch_size=4) == sent("dp2", global_batch_size=8)


def test_a_shard_of_everything_is_at_rest_in_both_stages() -> None:
    job = make_job("dp4+zero3")
    for layout in ("dp4+zero2", "dp4+zero3"):
        at_rest = expected_at_rest(active_in(make_job(layout).layout, from_options({})), make_job(layout))
        assert at_rest["parameters"] == PARAMETERS / 4
        assert at_rest["optimizer_state"] == pytest.approx(2 * PARAMETERS / 4, rel=1e-3)
    whole = weight_shapes(job)
    for name, size in local_weights([FullySharded()], job).items():
        assert size == (whole[name][0] // 4, *whole[name][1:])


@pytest.mark.parametrize("layout", ["dp16+zero3", "dp64+ep8+zero3", "dp32+ep2+zero2"])
def test_experts_are_shared_by_all_their_ranks_also_where_those_are_more_than_experts(layout: str) -> None:
    """Of 8 experts in a dimension of their own a rank of 16 would have a whole one, twice its share."""
    job = make_job(layout, shape="moe-tiny")
    held = local_weights(active_in(job.layout, from_options({})), job)
    for name, size in weight_shapes(job).items():
        assert ".experts." not in name or prod(held[name]) == prod(size) / job.layout.dp


def test_stage_3_holds_a_layer_or_the_head_beside_its_shard_and_stage_2_all_but_the_embedding() -> None:
    held = {}
    for layout in ("dp4+zero2", "dp4+zero3"):
        job = make_job(layout)
        held[layout] = expected_memory(active_in(job.layout, from_options({})), job)["parameters"] - PARAMETERS / 4
    norm = job.shape.hidden_size * 8
    head = norm * job.shape.vocab_size
    layers = PARAMETERS - 2 * head - norm
    assert held["dp4+zero2"] == PARAMETERS - head  # the embedding's forward is over
    assert held["dp4+zero3"] == norm + max(head, layers / 4)  # one of four layers at a time


@pytest.mark.parametrize(("shape", "around"), [("llama-tiny", 3), ("llama-tiny-tied", 1)])
def test_embedding_and_head_are_groups_of_their_own_but_for_a_tied_table(shape: str, around: int) -> None:
    """Beside the norm; none of them is gathered again in the backward of a micro-batch, of which there are four."""
    sent = counts({}, "dp4+zero3", 0, shape=shape)
    assert sent == {"all_gather": 4 * (2 * 4 + around), "reduce_scatter": 4 * (4 + around)}


@pytest.mark.parametrize(
    ("layout", "held", "before"),
    [
        ("cp2-tp4+sp+zero3", 4_958_464, 5_286_144),
        ("dp2-tp2+sp+zero3", 5_187_840, 5_449_984),
        ("dp2-tp4+zero2", 4_958_464, 5_286_144),
    ],
)
def test_before_torch_2_15_the_last_gradient_of_a_layer_is_there_beside_its_share(
    layout: str, held: int, before: int
) -> None:
    """Where experts are whole that is their last weight's; dry runs held as much, and 256 bytes more with 2.15."""
    num_replicas = ParallelLayout.parse(layout).dp
    job = make_job(layout, shape="moe-tiny", dtype="bfloat16", micro_batch_size=1, global_batch_size=num_replicas)
    gradients = expected_memory(active_in(job.layout, from_options({})), job)["gradients"]
    assert gradients == (held if adds_up_in_parameters() else before)


def test_replicas_of_shards_gather_among_fewer_and_sum_what_is_left() -> None:
    by_axis = sent("dp4+zero3", {"shard_group_size": 2}, global_batch_size=8)
    assert set(by_axis) == {"shard", "replica"}
    # reduced to halves, which pairs of replicas then sum
    assert by_axis["replica"] == pytest.approx(PARAMETERS / 2)
    assert by_axis["shard"] < sent("dp4+zero3", global_batch_size=8)["dp"]


def test_schedules_reduce_once_and_gather_as_often_as_they_let_go() -> None:
    # two layers and what is around them; four micro-batches
    assert counts({"schedule": "gpipe"}, "pp2-dp2+zero2", 0) == {"all_gather": 3, "reduce_scatter": 3}
    # each forward lets go, the backwards keep: 4 + 1 gathers of each layer
    assert counts({"schedule": "gpipe"}, "pp2-dp2+zero3", 0) == {"all_gather": 2 * 5 + 1, "reduce_scatter": 3}
    # each forward and backward of each micro-batch by itself
    assert counts({"schedule": "naive"}, "pp2-dp2+zero3", 0) == {"all_gather": 2 * 8 + 4, "reduce_scatter": 12}


@pytest.mark.parametrize(
    ("layout", "size", "reason"),
    [
        ("tp2+sp+zero2", 0, "+zero2 shards over ranks that hold the same weights, but dp and cp are 1"),
        (
            "dp4+zero3",
            3,
            "shard_group_size 3 has to be a divisor of the 4 ranks of dp x cp, more than 1 and fewer than all",
        ),
        (
            "dp4+zero3",
            4,
            "shard_group_size 4 has to be a divisor of the 4 ranks of dp x cp, more than 1 and fewer than all",
        ),
        ("dp4+ep2+zero2", 2, "shard_group_size 2 and +ep2: the expert grid has its own copies, of another size"),
        ("dp2-cp2+zero3", 2, None),
        ("dp2+zero2", 0, None),
    ],
)
def test_what_cannot_be_sharded_is_said(layout: str, size: int, reason: str | None) -> None:
    assert FullySharded(shard_group_size=size).objection(make_job(layout, shape="moe-tiny")) == reason


def test_offload_is_refused_where_experts_are_not_fsdps() -> None:
    """They would be multiplied in host memory, or not at all: their inputs are on the card."""
    alone, shared = (make_job(layout, shape="moe-tiny") for layout in ("dp2+ep2+zero3", "dp4+ep2+zero3"))
    assert FullySharded(offload=True).objection(alone) == (
        "offload and +ep2: each expert is on one rank alone, so FSDP does not shard it, and nothing would bring it "
        "from host memory to the card; with a smaller ep FSDP shards it"
    )
    assert FullySharded().objection(alone) is None
    assert FullySharded(offload=True).objection(shared) is None
