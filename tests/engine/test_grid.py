"""The groups of ranks that a layout has, as processes see them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbench.layout import AXES, RANK_ORDERS, ParallelLayout
from tests.ranks import run_ranks

pytestmark = pytest.mark.gloo

FULL = "pp2-dp2-cp2-tp2+sp+ep2"


def ranks_in_groups(layout: str) -> dict[str, dict[str, tuple[list[int], int]]]:
    """Rank order -> axis or view -> the ranks this one shares it with, and its own place among them."""
    import torch.distributed as dist

    from clusterbench.engine.grid import Grid

    parsed = ParallelLayout.parse(layout)
    ranks_of = {}
    for order in ("megatron", "picotron"):  # the two ways of ordering that there are
        grid = Grid(parsed, order, "cpu")
        ranks_of[order] = {
            axis: (dist.get_process_group_ranks(grid.group(axis)), grid.rank(axis)) for axis in (*AXES, *parsed.views)
        }
        assert sorted(set(grid.names().values())) == sorted((*AXES, *parsed.views))
        for view in parsed.views:
            assert grid.line(view).mesh.tolist() == ranks_of[order][view][0]
    return ranks_of


def test_every_rank_order_is_one_of_two() -> None:
    assert set(RANK_ORDERS.values()) == {RANK_ORDERS["megatron"], RANK_ORDERS["picotron"]}


def test_groups_of_sixteen_ranks_are_the_layouts() -> None:
    layout = ParallelLayout.parse(FULL)
    for rank, ranks_of in enumerate(run_ranks(16, ranks_in_groups, FULL)):
        for order, groups in ranks_of.items():
            for axis, (ranks, place) in groups.items():
                (mine,) = (group for group in layout.groups(axis, order) if rank in group)
                assert ranks == sorted(mine), (order, axis)
                assert mine[place] == rank, (order, axis)


def in_the_middle(layout: str) -> bool:
    from clusterbench.engine.grid import Grid

    try:
        Grid(ParallelLayout.parse(layout), "megatron", "cpu").group("ends")
    except KeyError:
        return True
    return False


def test_a_stage_in_the_middle_is_at_no_end() -> None:
    assert run_ranks(4, in_the_middle, "pp4") == [False, True, True, False]


def cut_in_shards(layout: str, size: int) -> tuple[Any, ...]:
    from clusterbench.engine.grid import Grid

    grid = Grid(ParallelLayout.parse(layout), "megatron", "cpu")
    mesh = grid.shards(size)
    assert grid.shards(size) is mesh  # made once
    return mesh.mesh_dim_names, mesh.mesh.tolist(), grid.rank("replica"), grid.rank("shard"), grid.names()


def test_the_data_axis_is_cut_into_neighbours_that_share_and_replicas() -> None:
    # of dp_cp, whose four ranks are 0, 2, 4, 6 for tp 0: neighbours share a copy
    meshes = run_ranks(8, cut_in_shards, "dp2-cp2-tp2", 2)
    assert [mesh[1] for mesh in meshes] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]] * 4
    assert [mesh[2] for mesh in meshes] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [mesh[3] for mesh in meshes] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert all(mesh[0] == ("replica", "shard") for mesh in meshes)
    assert all({"replica", "shard"} < set(mesh[4].values()) for mesh in meshes)


def alone() -> dict[str, str]:
    from clusterbench.engine.grid import Grid

    return Grid(ParallelLayout.parse("tp1"), "megatron", "cpu").names()


def test_groups_of_one_rank_have_no_name() -> None:
    assert run_ranks(1, alone) == [{}]
