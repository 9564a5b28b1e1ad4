"""Counted collectives equal the formula, in number and in bytes, for every op and axis."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.training.jobs import make_job, traffic_of

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tp1", {}, {}),
    ("tp2", {}, {}),
    ("tp2", {"loss_parallel": False}, {}),
    ("tp2", {}, {"dtype": "bfloat16"}),
    ("tp2", {}, {"max_grad_norm": None}),
    ("tp2", {}, {"global_batch_size": 2}),
    ("tp2", {"recompute": "full"}, {}),
    ("tp2", {"recompute": "selective"}, {}),
    ("tp2+sp", {}, {}),
    ("tp2+sp", {"loss_parallel": False}, {}),
    ("tp2+sp", {"recompute": "full"}, {}),
    ("tp2+sp", {"recompute": "selective"}, {}),
    ("tp2+sp", {}, {"dtype": "bfloat16"}),
    ("dp2", {}, {}),
    ("dp2", {"recompute": "full"}, {}),
    ("tp4", {}, {}),
    ("tp4+sp", {}, {"global_batch_size": 12}),
    ("dp2-tp2", {}, {}),
    ("dp2-tp2+sp", {}, {}),
    ("dp2-tp2+sp", {"loss_parallel": False, "recompute": "full"}, {}),
]


@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "options", "changes"), CASES)
def test_counted_traffic_is_the_formulas(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> None:
    for counted, formula in run_ranks(make_job(layout).layout.world_size, traffic_of, layout, options, changes):
        assert counted == formula


@pytest.mark.gloo
def test_kv_heads_kept_whole_and_a_tied_embedding_change_no_formula() -> None:
    # llama-tiny has 4 kv heads, so tp8 keeps them whole.
    for layout, shape in (("tp8+sp", "llama-tiny"), ("tp2", "llama-tiny-tied"), ("dp2-tp2+sp", "llama-tiny-tied")):
        for counted, formula in run_ranks(make_job(layout).layout.world_size, traffic_of, layout, {}, {"shape": shape}):
            assert counted == formula


def planted(layout: str) -> tuple[Any, Any]:
    import torch
    import torch.distributed as dist

    from clusterbench.training.step import TrainingStep

    honest = TrainingStep.update

    def with_one_more(self: Any) -> None:
        assert self.grid is not None
        dist.all_reduce(torch.zeros(1), group=self.grid.group("tp"))
        honest(self)

    TrainingStep.update = with_one_more  # type: ignore[method-assign]
    return traffic_of(layout, {}, {})


@pytest.mark.gloo
def test_one_all_reduce_more_than_the_formula_shows() -> None:
    counted, formula = run_ranks(2, planted, "tp2+sp")[0]
    assert counted[("tp", "all_reduce")][0] == formula[("tp", "all_reduce")][0] + 1


def test_gradient_buckets_are_counted_by_ddps_rule() -> None:
    from clusterbench.parallel.data import num_buckets

    mib = 2**20
    assert num_buckets([]) == 0
    assert num_buckets([10]) == 1
    assert num_buckets([mib]) == 1  # the first bucket is full at 1 MiB,
    assert num_buckets([mib, 10]) == 2
    assert num_buckets([mib, 24 * mib, mib, 10]) == 3  # the others at 25 MiB
    assert num_buckets([60 * mib] * 3) == 3  # a gradient is never cut
