"""Whether the ranks of each group are those that the layout says: others compute the same, over other links."""

from __future__ import annotations

import torch.distributed as dist

from clusterbench.engine.grid import Grid
from clusterbench.errors import WrongResult
from clusterbench.layout import REPLICA, SHARD, ParallelLayout


def check_groups(grid: Grid, layout: ParallelLayout, rank_order: str) -> None:
    """Compares all groups that this rank is in, as torch has them, with what layout and rank order make of it.

    Parameters
    ----------
    layout, rank_order
        As the case asks for them, whatever the grid was made of.

    Raises
    ------
    WrongResult
        Naming the first group with other ranks.
    """
    rank = dist.get_rank()
    for axis in sorted(grid.names().values()):
        got = sorted(dist.get_process_group_ranks(grid.group(axis)))
        wanted = _wanted(axis, len(got), layout, rank_order, rank)
        if got != wanted:
            raise WrongResult(
                f"the ranks of {axis} around rank {rank} are {_listed(got)}, and in {layout} with ranks in the order "
                f"of {rank_order} they are {_listed(wanted)}. The numbers may be the same, and the links are others."
            )


def _wanted(axis: str, size: int, layout: ParallelLayout, rank_order: str, rank: int) -> list[int]:
    if axis not in (SHARD, REPLICA):
        return sorted(next(group for group in layout.groups(axis, rank_order) if rank in group))
    # those of the data axis in their order, cut into shards of neighbours; replicas have the same place in each
    row = next(group for group in layout.groups(layout.data_axis, rank_order) if rank in group)
    if axis == SHARD:
        first = row.index(rank) // size * size
        return sorted(row[first : first + size])
    return sorted(row[row.index(rank) % (len(row) // size) :: len(row) // size])


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"
