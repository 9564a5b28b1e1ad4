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

_NO_RDMA, _NO_PEERS = "InfiniBand and RoCE are not used", "GPUs of a host do not reach each other's memory"
_NO_GDR = "network cards do not reach GPU memory"
_FORBIDS = {
    ("NCCL_IB_DISABLE", "1"): _NO_RDMA,
    ("NCCL_NET", "SOCKET"): _NO_RDMA,
    ("NCCL_P2P_DISABLE", "1"): _NO_PEERS,
    ("NCCL_P2P_LEVEL", "LOC"): _NO_PEERS,
    ("NCCL_P2P_LEVEL", "0"): _NO_PEERS,
    ("NCCL_SHM_DISABLE", "1"): "ranks of a host do not share its memory",
    ("NCCL_NET_GDR_LEVEL", "LOC"): _NO_GDR,
    ("NCCL_NET_GDR_LEVEL", "0"): _NO_GDR,
    ("NCCL_NVLS_ENABLE", "0"): "the NVLink switches do not reduce",
}
"""What is lost. A level may be said by its old number: NCCL user guide, environment variables."""

CHOSEN = {
    "NCCL_ALGO": "NCCL takes this algorithm for all sizes",
    "NCCL_PROTO": "NCCL takes this protocol for all sizes",
}
"""Settings that take a choice from NCCL."""

BETWEEN_GPUS = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
"""Variables of the ways within a host."""


def forbidden(name: str, value: str) -> str | None:
    """What a setting takes from NCCL; None where it takes nothing."""
    return _FORBIDS.get((name, as_read(value)))


def as_read(value: str) -> str:
    """A value as NCCL reads it, ``socket`` as ``Socket`` and ``01`` as 1: in capitals.

    >>> as_read(" socket "), as_read("01")
    ('SOCKET', '1')
    """
    word = value.strip()
    return str(int(word)) if word.isascii() and word.isdecimal() and len(word) < 20 else word.upper()


def by_socket(between: Iterable[Kind]) -> list[Kind]:
    """Of connections between hosts the ends that are sockets: the CPUs copy every byte."""
    return _one_end(way for way in between if way.transport in SOCKETS)


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
    return _one_end(way for way in within if way.transport.startswith("NET/"))


def through_memory(within: Iterable[Kind]) -> list[Kind]:
    """Of connections within a host those through its memory: slower where NVLink joins the GPUs."""
    return _one_end(way for way in within if way.transport.startswith("SHM/"))


def _one_end(ways: Iterable[Kind]) -> list[Kind]:
    """The sending ends, so that a connection counts once; a log of some ranks may hold receiving ends alone."""
    both = list(ways)
    return [way for way in both if way.direction == "send"] or both
