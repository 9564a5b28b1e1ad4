"""What ZeRO 1 shares, sends and refuses, against the paper and against torch's own sharing."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.job import weight_shapes
from clusterbench.parallel import active_in, expected_memory, expected_traffic, from_options, local_weights
from clusterbench.parallel.zero import ZeroOptimizer, shares_of
from tests.ranks import run_ranks
from tests.training.jobs import make_job, make_rig


def of(layout: str, **changes: Any) -> tuple[dict[str, float], dict[tuple[str, str], int]]:
    """Memory, and bytes by axis and op."""
    job = make_job(layout, **changes)
    active = active_in(job.layout, from_options({}))
    sent = {(message.axis, message.op): message.size_bytes for message in expected_traffic(active, job)}
    return expected_memory(active, job), sent


def test_only_optimizer_states_are_shared() -> None:
    alone, _ = of("dp4")
    shared, _ = of("dp4+zero1")
    assert {**shared, "optimizer_state": 0} == {**alone, "optimizer_state": 0}
    # The paper's 1/d (section 5.1), but for whole weights: the fullest rank of four has the head, an eighth of all.
    assert shared["optimizer_state"] == pytest.approx(alone["optimizer_state"] / 4, rel=0.02)


def test_averaged_gradients_and_broadcast_weights_are_all_that_is_sent() -> None:
    parameters = make_job("dp4").shape.num_parameters * 8
    _, sent = of("dp4+zero1", max_grad_norm=None)
    assert sent == {("dp", "all_reduce"): parameters, ("dp", "broadcast"): parameters}


def test_a_large_weight_goes_to_the_rank_with_least() -> None:
    assert shares_of([6, 5, 4, 3, 2, 1], ranks=2) == [[6, 3, 2], [5, 4, 1]]
    assert shares_of([7], ranks=3) == [[7], [], []]


def torchs_shares(layout: str) -> list[list[int]]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from clusterbench.training.step import TrainingStep

    job = make_job(layout)
    rig = make_rig(job.layout)
    (optimizer,) = TrainingStep(job, from_options({}), rig.grid, rig.device).optimizers
    assert isinstance(optimizer, ZeroRedundancyOptimizer)
    parts = optimizer._partition_parameters()
    return [[weight.numel() for group in part for weight in group["params"]] for part in parts]


@pytest.mark.gloo
def test_torch_shares_weights_out_as_the_formula_does() -> None:
    sizes = [size[0] * (size[1] if len(size) > 1 else 1) for size in weight_shapes(make_job("dp2")).values()]
    assert [sorted(share) for share in run_ranks(2, torchs_shares, "dp2+zero1")[0]] == [
        sorted(share) for share in shares_of(sizes, 2)
    ]


def test_experts_are_shared_among_their_copies() -> None:
    job = make_job("dp4+ep2+zero1", shape="moe-tiny")
    sent = {message.axis: message for message in ZeroOptimizer().traffic(job)}
    weights = local_weights(active_in(job.layout, from_options({})), job)
    experts = [name for name in weights if ".experts." in name]
    assert (sent["edp"].op, sent["edp"].count) == ("broadcast", len(experts))
    assert sent["dp"].count == len(weights) - len(experts)


@pytest.mark.parametrize("layout", ["tp1+zero1", "tp2+sp+zero1", "pp2+zero1", "pp2-tp2+sp+zero1"])
def test_without_ranks_that_hold_the_same_there_is_nothing_to_share(layout: str) -> None:
    assert ZeroOptimizer().objection(make_job(layout)) == (
        "+zero1 shares optimizer states among ranks that hold the same weights, but dp and cp are 1"
    )


@pytest.mark.parametrize("layout", ["dp2+zero1", "cp2+zero1", "pp2-dp2+zero1", "tp4+sp+ep2+zero1"])
def test_ranks_that_hold_the_same_can_share(layout: str) -> None:
    # in the last, tp ranks have copies of experts
    assert ZeroOptimizer().objection(make_job(layout, shape="moe-tiny")) is None
