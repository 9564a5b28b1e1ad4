"""Collectives of one group of ranks, in torch's names old and new."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

# torch 2.13 renamed the two; 2.11 and 2.12 have the old names only, later releases warn on them.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Communicator:
    """The ranks of one process group. Every method is a collective: all ranks call it in the same order."""

    def __init__(self, group: Any = None) -> None:
        self.group: Any = group if group is not None else dist.group.WORLD
        self.rank = dist.get_rank(self.group)
        self.world_size = dist.get_world_size(self.group)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None:
        """Reduces in place; afterwards every rank holds the same."""
        dist.all_reduce(tensor, op=REDUCE_OPS[op], group=self.group)

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Fills ``whole`` (world_size x part) with every rank's part in rank order."""
        _all_gather_single(whole, part, group=self.group)

    def reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor, op: str = "sum") -> None:
        """Fills ``part`` with this rank's share of the reduced ``whole``."""
        _reduce_scatter_single(part, whole, op=REDUCE_OPS[op], group=self.group)

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """Sends the r-th equal share of ``sent`` to rank r."""
        dist.all_to_all_single(received, sent, group=self.group)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Copies ``tensor`` of the group's rank ``root`` to all."""
        dist.broadcast(tensor, src=dist.get_global_rank(self.group, root), group=self.group)

    def barrier(self) -> None:
        dist.barrier(group=self.group)
