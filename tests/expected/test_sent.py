"""The bytes that a plan expects on the busiest link, by hand."""

from __future__ import annotations

import pytest

from clusterbench.cluster import Cluster
from clusterbench.expected.step import expected_step
from clusterbench.parallel import from_options
from tests.training.jobs import make_job

CLUSTER = Cluster(1, 4, "cpu")


@pytest.mark.parametrize(("layout", "ways"), [("pp2", 1), ("pp4", 2)])
def test_a_stage_is_charged_with_what_it_sends_and_not_with_what_comes(layout: str, ways: int) -> None:
    """Activations to the next stage and gradients to the one before; of two stages each sends in one direction."""
    job = make_job(layout, dtype="float32", seq_len=128, micro_batch_size=1, global_batch_size=8)
    residual_bytes = 128 * job.shape.hidden_size * 4
    expected = expected_step(job, from_options({}), CLUSTER)["traffic_bytes[axis=pp]"]
    norm_bytes = 4 * 2 * (job.layout.pp - 1) / job.layout.pp  # all-reduced in the end
    assert expected.value == 8 * ways * residual_bytes + norm_bytes


def test_keys_that_go_round_a_ring_cost_what_gathering_them_does() -> None:
    """Each of two ranks hands its keys and values on, and gathering them moves as much, in each forward."""
    job = make_job("cp2", dtype="float32", seq_len=128)
    ring, gathered = (
        expected_step(job, from_options({"context": context}), CLUSTER)["traffic_bytes[axis=cp]"].value
        for context in ("ring", "all_gather")
    )
    shape = job.shape
    of_keys = 64 * job.micro_batch_size * 2 * shape.num_kv_heads * shape.head_dim * 4
    forwards = shape.num_layers * job.gradient_accumulation_steps
    # backward: keys go round again with their gradients, which go once more; gathered ones are scattered
    assert ring - gathered == forwards * of_keys, (ring, gathered, of_keys)
