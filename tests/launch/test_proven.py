"""What was proven is not proven again, and nothing else is taken for proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cluster import Cluster
from clusterbench.launch.proven import Proven, key_of
from clusterbench.types import Case, Observation, Place

OTHER: dict[str, dict[str, Any]] = {
    "dp2": {
        "shape": "llama-1b",
        "dtype": "bfloat16",
        "seed": 1,
        "max_grad_norm": None,
        "trainer": "plain_ddp",
        "rank_order": "picotron",
        "compress": "bf16",
        "recompute": "full",
        "compile": True,
    },
    "pp2": {"schedule": "gpipe"},
    "cp2": {"context": "ring"},
    "tp2": {"loss_parallel": False},
    "dp4+zero3": {"offload": True, "shard_group_size": 2},
    "dp2+ep2": {"routing": "balanced", "expert_overlap": True, "aux_loss": 0.1},
}
"""Layout -> options with another value each that the twin runs with."""


def case_of(layout: str, **options: Any) -> Case:
    if "ep" in layout:
        options = {"shape": "moe-tiny", **options}
    benchmark = TrainStep.from_options({"layouts": (layout,), **options})
    place = Place(Cluster(1, 4, "cpu"), 1)
    (point,) = benchmark.points(place)
    world_size = benchmark.world_size(point, place)
    return Case(f"train_step/1n{world_size}/{layout}", "train_step", 1, point, "cpu", 1, world_size, 5, 3, 60.0)


def test_a_sweep_over_what_the_twin_does_not_have_is_proven_once():
    key = key_of(case_of("dp2", seq_len=256, global_batch_size=8, micro_batch_size=1))
    assert key_of(case_of("dp2", seq_len=512, global_batch_size=16, micro_batch_size=2)) == key
    assert key_of(replace(case_of("dp2"), iterations=50, warmup=0, time_limit_s=1.0)) == key
    assert len(key) == 16


@pytest.mark.parametrize(
    ("layout", "option", "value"),
    [(layout, option, value) for layout, options in OTHER.items() for option, value in options.items()],
)
def test_another_value_of_what_the_twin_runs_with_is_proven_by_itself(layout, option, value):
    assert key_of(case_of(layout, **{option: value})) != key_of(case_of(layout))


def test_other_ranks_variables_and_layouts_are_proven_by_themselves():
    case = case_of("dp2")
    others = [
        replace(case, device="cuda"),
        replace(case, num_nodes=2),
        replace(case, environment={"NCCL_ALGO": "Ring"}),
        case_of("tp2"),
        case_of("dp4"),
        case_of("pp2", schedule="looped_bfs", chunks_per_rank=2),
        case_of("pp2", schedule="looped_bfs", chunks_per_rank=4),
    ]
    keys = [key_of(other) for other in (case, *others)]
    assert len({*keys}) == len(keys)


def test_what_is_not_compared_and_what_checks_itself_have_no_key():
    assert key_of(case_of("dp2", parity=False)) == ""
    assert key_of(Case("matmul/1n1/a", "matmul", 1, {"size": 8}, "cpu", 1, 1, 5, 3, 60.0)) == ""


def observation_of(case: Case, repeat: int, evidence: dict[str, float]) -> Observation:
    return Observation(case.id, case.hash, repeat, 1, ("h",), [[1.0], [1.0]], [evidence, evidence])


def test_a_repeat_takes_over_what_was_proven_and_nothing_that_was_seen_of_other_steps():
    proven, case = Proven(), case_of("dp2")
    assert not proven.is_known(case)
    proof = {"parity_loss": 1e-7, "proof_time": 3.0}
    first = proven.complete(case, observation_of(case, 0, {**proof, "loss": 5.0, "norm": 1.0}), [proof] * 2)
    assert (first.proof, first.proven_by) == (key_of(case), "")
    assert proven.is_known(case)
    second = proven.complete(case, observation_of(case, 1, {"loss": 5.1}), [{}, {}])
    assert (second.proof, second.proven_by) == (key_of(case), "train_step/1n2/dp2, repeat 0")
    assert second.evidence == [{"parity_loss": 1e-7, "proof_time": 0.0, "loss": 5.1}] * 2


def test_nothing_is_taken_over_where_each_case_checks_itself():
    proven, case = Proven(), case_of("dp2", parity=False)
    proven.complete(case, observation_of(case, 0, {"loss": 5.0}), [{}, {}])
    assert not proven.is_known(case)
    assert proven.complete(case, observation_of(case, 1, {"loss": 5.0}), [{}, {}]).proven_by == ""
