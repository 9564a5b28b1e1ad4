"""What NCCL chose, as its log says it and records of runs keep it: without the patterns that read a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Channels:
    """How many channels a communicator has for what; None where this version does not say."""

    coll: int
    p2p: int
    collnet: int | None = None
    nvls: int | None = None


class Tuning(NamedTuple):
    """What was chosen for one call; told by rank 0 of a communicator.

    Attributes
    ----------
    op
        NCCL's name, ``AllReduce``; None before 2.22, which does not say.
    size_bytes
        Count times element size of the call: for AllGather and ReduceScatter the share of one rank.
    algorithm
        ``RING``, ``TREE``, ``NVLS``, ...; ``SYMMETRIC`` and ``COPY_ENGINE`` for what runs without one.
    protocol
        ``LL``, ``LL128``, ``SIMPLE``, or the kernel's name, or how bytes are copied.
    num_channels
        Channels the call ran on; None where it is not said.
    """

    op: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    num_channels: int | None
