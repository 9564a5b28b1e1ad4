"""Groups of other ranks than the layout's are wrong, though every number is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterbench.layout import RANK_ORDERS, ParallelLayout
from tests.ranks import run_ranks

pytestmark = pytest.mark.gloo


def said(layout: str, rank_order: str, defect: str) -> str:
    from clusterbench.engine.grid import Grid
    from clusterbench.errors import WrongResult
    from clusterbench.proof.groups import check_groups

    parsed = ParallelLayout.parse(layout)
    made = replace(parsed)
    if defect == "axes":
        (((first, second),), ((third, fourth),)) = made.mesh_ranks(rank_order)[0][0], made.mesh_ranks(rank_order)[0][1]
        exchanged = [[[[first, third]], [[second, fourth]]]]
        object.__setattr__(made, "mesh_ranks", lambda order: exchanged)
    if defect == "shards":
        groups = made.groups
        object.__setattr__(made, "groups", lambda axis, order: [row[::2] + row[1::2] for row in groups(axis, order)])
    grid = Grid(made, rank_order, "cpu")
    if parsed.zero and parsed.degree(parsed.data_axis) == 4:
        grid.shards(2)
    try:
        check_groups(grid, parsed, rank_order)
    except WrongResult as error:
        return str(error)
    return ""


@pytest.mark.parametrize("rank_order", ["megatron", "picotron"])
@pytest.mark.parametrize("layout", ["pp2-dp2-cp2", "pp2-dp2-tp2+sp+ep2", "dp4+zero2", "dp2-cp2+zero3", "dp2-cp2-tp2"])
def test_groups_of_every_layout_are_its_own(layout: str, rank_order: str) -> None:
    assert rank_order in RANK_ORDERS
    ranks = run_ranks(ParallelLayout.parse(layout).world_size, said, layout, rank_order, "")
    assert set(ranks) == {""}


def test_an_axis_that_lies_along_another_one_is_wrong() -> None:
    assert run_ranks(4, said, "dp2-tp2", "megatron", "axes")[0] == (
        "the ranks of dp around rank 0 are 0, 1, and in dp2-tp2 with ranks in the order of megatron they are 0, 2. "
        "The numbers may be the same, and the links are others."
    )


def test_shards_that_are_no_neighbours_are_wrong() -> None:
    first, *_ = run_ranks(4, said, "dp4+zero2", "megatron", "shards")
    assert first.startswith("the ranks of replica around rank 0 are 0, 1, and in dp4+zero2 ")
    assert " they are 0, 2. " in first
