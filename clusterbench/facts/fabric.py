from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from clusterbench.facts import Facts, Files

BUS = "/sys/bus/pci/devices"
FABRIC_MANAGER = "systemctl show nvidia-fabricmanager --property=LoadState,ActiveState,SubState"
IMEX = "nvidia-imex-ctl -N -H -j"
CONNECTED = "CONNECTED"

_NVIDIA, _SWITCH, _GPUS = "0x10de", "0x0680", ("0x0300", "0x0302", "0x1200")
_MOST_NODES = 64
_MOST_WORD = 60


@dataclass(frozen=True)
class ImexNode:
    """A node of a multi-node NVLink domain; ``broken`` are its connections that are not: ``10.0.0.2: INVALID``."""

    name: str
    status: str
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Imex:
    """What ``nvidia-imex-ctl`` says of the domain: ``UP``, ``DEGRADED``, ``DOWN``; of a node ``READY``."""

    status: str
    nodes: tuple[ImexNode, ...]


@dataclass(frozen=True, kw_only=True)
class Fabric(Facts):
    """NVSwitches, the service that trains them, and the domain in which hosts share GPU memory over NVLink.

    ``num_switches`` is None where there is no PCIe bus to look at. ``manager`` is systemd's word for the service,
    ``active``, ``inactive``, ``failed`` or ``not-found``. Programs are asked where the bus shows an NVIDIA GPU.
    """

    num_switches: int | None
    manager: str | None
    imex: Imex | None

    @classmethod
    def read(cls, files: Files) -> Self:
        if not files.exists(BUS):
            files.unread[BUS] = "is not there"
            return cls(num_switches=None, manager=None, imex=None, unread=files.unread)
        kinds = [_kind(files, address) for address in files.names(BUS)]
        if not any(kind.startswith(_GPUS) for kind in kinds):
            return cls(num_switches=0, manager=None, imex=None, unread=files.unread)
        return cls(
            num_switches=sum(kind.startswith(_SWITCH) for kind in kinds),
            manager=_manager(files.output(*FABRIC_MANAGER.split()) or ""),
            imex=imex(files.output(*IMEX.split()) or ""),
            unread=files.unread,
        )


def _kind(files: Files, address: str) -> str:
    """The class of an NVIDIA device; empty of others."""
    if files.text(f"{BUS}/{address}/vendor", optional=True) != _NVIDIA:
        return ""
    return files.text(f"{BUS}/{address}/class", optional=True) or ""


def _manager(printed: str) -> str | None:
    """One word of ``LoadState=loaded``, ``ActiveState=active``, ``SubState=running``."""
    states = dict(row.split("=", 1) for row in printed.splitlines() if "=" in row)
    if states.get("LoadState") in ("not-found", "masked"):
        return states["LoadState"]
    return (states.get("ActiveState") or "")[:_MOST_WORD] or None


def imex(printed: str) -> Imex | None:
    """The domain as ``nvidia-imex-ctl -N -H -j`` prints it; None of anything else.

    >>> imex('{"status": "UP", "nodes": {"0": {"status": "READY", "host": "10.0.0.1", "connections": {}}}}')
    Imex(status='UP', nodes=(ImexNode(name='10.0.0.1', status='READY', broken=()),))
    """
    try:
        said = json.loads(printed)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, Mapping) or not isinstance(said.get("status"), str):
        return None
    nodes = said.get("nodes")
    members = [node for node in nodes.values() if isinstance(node, Mapping)] if isinstance(nodes, Mapping) else []
    return Imex(_word(said["status"]), tuple(_node(node) for node in members[:_MOST_NODES]))


def _node(node: Mapping[str, Any]) -> ImexNode:
    connections = node.get("connections")
    each = [one for one in connections.values() if isinstance(one, Mapping)] if isinstance(connections, Mapping) else []
    broken = [f"{_word(one.get('host'))}: {_word(one.get('status'))}" for one in each if one.get("status") != CONNECTED]
    name = node.get("hostName")
    return ImexNode(
        name=_word(name if name and name != "N/A" else node.get("host")),
        status=_word(node.get("status")),
        broken=tuple(broken[:_MOST_NODES]),
    )


def _word(value: object) -> str:
    return str(value)[:_MOST_WORD]
