"""Collectives of one group of ranks, in torch's names old and new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

# torch 2.13 renamed the two; 2.11 and 2.12 have the old names only, later releases warn on them.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


class Communicator:
    """The ranks of one process group. Every method is a collective: all ranks call it in the same order.

    Ranks, also ``root``, ``source`` and ``destination``, are those of the group.
    """

    def __init__(self, group: Any = None) -> None:
        self.group: Any = group if group is not None else dist.group.WORLD
        self.rank = dist.get_rank(self.group)
        self.world_size = dist.get_world_size(self.group)
        self._global_ranks = dist.get_process_group_ranks(self.group)  # once: calls are timed

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None:
        """Reduces in place; afterwards every rank holds the same."""
        dist.all_reduce(tensor, op=REDUCE_OPS[op], group=self.group)

    def reduce(self, tensor: torch.Tensor, op: str = "sum", root: int = 0) -> None:
        """Reduces in place on ``root``; what the others hold afterwards is undefined."""
        dist.reduce(tensor, dst=self.global_rank(root), op=REDUCE_OPS[op], group=self.group)

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Fills ``whole`` (world_size x part) with every rank's part in rank order."""
        _all_gather_single(whole, part, group=self.group)

    def reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor, op: str = "sum") -> None:
        """Fills ``part`` with this rank's share of the reduced ``whole``."""
        _reduce_scatter_single(part, whole, op=REDUCE_OPS[op], group=self.group)

    def gather(self, parts: Sequence[torch.Tensor], part: torch.Tensor, root: int = 0) -> None:
        """Fills ``parts`` of ``root``, one for each rank, with every rank's part; the others give an empty list."""
        dist.gather(part, list(parts) or None, dst=self.global_rank(root), group=self.group)

    def scatter(self, part: torch.Tensor, parts: Sequence[torch.Tensor], root: int = 0) -> None:
        """Fills ``part`` with this rank's of ``parts`` on ``root``; the others give an empty list."""
        dist.scatter(part, list(parts) or None, src=self.global_rank(root), group=self.group)

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        receive_counts: Sequence[int] | None = None,
        send_counts: Sequence[int] | None = None,
    ) -> None:
        """Sends the r-th share of ``sent`` to rank r. Shares are equal, or of so many elements each."""
        dist.all_to_all_single(received, sent, _listed(receive_counts), _listed(send_counts), group=self.group)

    def send_receive(self, received: torch.Tensor, source: int, sent: torch.Tensor, destination: int) -> None:
        """Sends to one rank and receives from one at the same time; every rank does both."""
        operations = [
            dist.P2POp(dist.isend, sent, self.global_rank(destination), self.group),
            dist.P2POp(dist.irecv, received, self.global_rank(source), self.group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def exchange(self, sent: Sequence[tuple[torch.Tensor, int]], received: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Sends and receives (message, rank), all at once; a rank may have nothing for one of the two."""
        operations = [
            *(dist.P2POp(dist.isend, tensor, self.global_rank(rank), self.group) for tensor, rank in sent),
            *(dist.P2POp(dist.irecv, tensor, self.global_rank(rank), self.group) for tensor, rank in received),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Copies ``tensor`` of ``root`` to all."""
        dist.broadcast(tensor, src=self.global_rank(root), group=self.group)

    def barrier(self) -> None:
        dist.barrier(group=self.group)

    def global_rank(self, rank: int) -> int:
        return self._global_ranks[rank]


def _listed(counts: Sequence[int] | None) -> list[int] | None:
    return None if counts is None else list(counts)
