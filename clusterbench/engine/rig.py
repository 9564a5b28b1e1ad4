"""What a worker hands a benchmark: device, communicators, mesh, allocation, checks."""

from __future__ import annotations

import os
import socket
from functools import cached_property

import psutil
import torch

from clusterbench.engine.communicator import Communicator
from clusterbench.engine.grid import Grid
from clusterbench.errors import LaunchError, WrongResult
from clusterbench.layout import ParallelLayout

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
}


_LONGEST_WORD = 256


class Rig:
    """One rank of one case.

    Attributes
    ----------
    rank, world_size, local_rank, host
        Of the case; ``host`` and ``rank`` stand in the messages of failed checks.
    device
        Where this rank allocates.
    grid
        The ranks as the case's layout sees them; None where the benchmark asked for none.
    """

    def __init__(self, *, rank: int, world_size: int, local_rank: int, host: str, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.host = host
        self.device = device
        self.grid: Grid | None = None

    @cached_property
    def comm(self) -> Communicator:
        """All ranks of the case."""
        return Communicator()

    def build_grid(self, layout: ParallelLayout, rank_order: str) -> None:
        """Mesh and groups of ``layout``; a collective, as creating groups is."""
        self.grid = Grid(layout, rank_order, self.device.type)

    @property
    def address(self) -> str:
        """IPv4 address where the other ranks reach this host: on Gloo's interface, or its own where all are on one."""
        name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        addresses = [one.address for one in psutil.net_if_addrs().get(name, ()) if one.family == socket.AF_INET]
        if not addresses:
            raise LaunchError(f"interface {name} of {self.host} has no IPv4 address")
        return addresses[0]

    def tell(self, text: str, root: int) -> str:
        """What rank ``root`` says, on every rank; a collective."""
        said = torch.zeros(_LONGEST_WORD, dtype=torch.uint8, device=self.device)
        if self.rank == root:
            data = text.encode()
            said[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.comm.broadcast(said, root)
        return bytes(said.tolist()).rstrip(b"\0").decode()

    def dtype(self, name: str) -> torch.dtype:
        return DTYPES[name]

    def empty(self, numel: int, dtype: str) -> torch.Tensor:
        """Uninitialised memory of ``numel`` elements."""
        return torch.empty(numel, dtype=DTYPES[dtype], device=self.device)

    def full(self, numel: int, dtype: str, value: float) -> torch.Tensor:
        """``numel`` elements of ``value``."""
        return torch.full((numel,), value, dtype=DTYPES[dtype], device=self.device)

    def addends(self, numel: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
        """What this rank adds to a sum over all ranks, and the sum: exact in every dtype, whatever the order.

        Element i gets ``1 + (i // world_size) % 7`` from rank ``i % world_size`` and nothing from the others, so a
        lost, doubled or misplaced contribution shows.
        """
        index = torch.arange(7 * self.world_size, device=self.device)
        whole = (1 + index // self.world_size).to(DTYPES[dtype])
        mine = torch.where(index % self.world_size == self.rank, whole, torch.zeros_like(whole))
        times = -(-numel // len(index))
        return mine.repeat(times)[:numel], whole.repeat(times)[:numel]

    def expect_equal(self, what: str, got: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
        """Compares every element, and counts and locates those that differ.

        Returns
        -------
        ``{"wrong_elements": 0.0}``, the evidence of a right result.

        Raises
        ------
        WrongResult
            With count, first index, both values, rank and host.
        """
        differs = (got != expected) | got.isnan() if got.is_floating_point() else got != expected
        wrong = int(differs.sum())
        if wrong:
            index = int(differs.flatten().nonzero()[0])
            raise WrongResult(
                f"{what} gave wrong results on rank {self.rank} (host {self.host}): {wrong} of {got.numel()} elements "
                f"differ. First at index {index}: got {got.flatten()[index].item()}, "
                f"expected {expected.expand_as(got).flatten()[index].item()}."
            )
        return {"wrong_elements": 0.0}
