"""Which ways of NCCL's connections are slower than others, and which settings forbid a way.

One rule for the diagnosis of a run (``diagnoses/wrong_transport.py``), which knows the machine, and for the doctor's
look at a log alone, which does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Way(Protocol):
    """A connection, as logged or as a rank recorded it."""

    @property
    def direction(self) -> str: ...
    @property
    def transport(self) -> str: ...
    @property
    def gdr(self) -> bool | None: ...


Kind = TypeVar("Kind", bound=Way)

SOCKETS = ("NET/Socket", "NET/FastSocket")
"""NCCL's own, and those of Google's plug-in."""

FORBIDS = {
    ("NCCL_IB_DISABLE", "1"): "InfiniBand and RoCE are not used",
    ("NCCL_NET", "Socket"): "InfiniBand and RoCE are not used",
    ("NCCL_P2P_DISABLE", "1"): "GPUs of a host do not reach each other's memory",
    ("NCCL_P2P_LEVEL", "LOC"): "GPUs of a host do not reach each other's memory",
    ("NCCL_SHM_DISABLE", "1"): "ranks of a host do not share its memory",
    ("NCCL_NET_GDR_LEVEL", "LOC"): "network cards do not reach GPU memory",
    ("NCCL_NVLS_ENABLE", "0"): "the NVLink switches do not reduce",
}
"""Settings that take a way from NCCL, with what is lost."""


def by_socket(between: Iterable[Kind]) -> list[Kind]:
    """Of connections between hosts the sending ends that are sockets: the CPUs copy every byte.

    The receiving ends where a log has no sending one.
    """
    ends = [way for way in between if way.transport in SOCKETS]
    return [way for way in ends if way.direction == "send"] or ends


def network_receives(between: Iterable[Kind]) -> list[Kind]:
    """Of connections between hosts the receiving ends over a network that could use GPUDirect RDMA.

    The receiving ends are asked, as GPUs before Ampere may rightly send without it.
    """
    return [
        way
        for way in between
        if way.direction == "receive" and way.transport.startswith("NET/") and way.transport not in SOCKETS
    ]


def without_gdr(receives: Iterable[Kind]) -> list[Kind]:
    """Those for which the card does not write into GPU memory itself."""
    return [way for way in receives if way.gdr is False]


def through_network(within: Iterable[Kind]) -> list[Kind]:
    """Of connections within a host those that leave it."""
    return [way for way in within if way.transport.startswith("NET/")]


def through_memory(within: Iterable[Kind]) -> list[Kind]:
    """Of connections within a host those through its memory: slower where NVLink joins the GPUs."""
    return [way for way in within if way.transport.startswith("SHM/")]
