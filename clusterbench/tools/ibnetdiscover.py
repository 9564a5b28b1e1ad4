"""``ibnetdiscover``: switches and adapters of an InfiniBand fabric, and the width and speed of the links between them.

Source: linux-rdma/rdma-core, ``infiniband-diags/ibnetdiscover.c``; rates of lanes: InfiniBand specification, volume 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NODE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-f]+)"\s*(?:#\s*"(.*?)".*)?')
_PORT = re.compile(
    r'\[(\d+)\](?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]+)"\[(\d+)\](?:\([0-9a-f]+\))?\s*#.*?(\d+)x([A-Z]+\d*)\b.*'
)
_LISTED = re.compile(
    r"(CA|SW|RT)\s+\d+\s+(\d+)\s+0x([0-9a-f]+)\s+(\d+)x\s+([A-Z]+\d*)\s+-\s+(CA|SW|RT)\s+\d+\s+(\d+)\s+0x([0-9a-f]+)\s+"
    r"\(\s*'(.*?)'\s+-\s+'(.*?)'\s*\)"
)
_KINDS = {"CA": ("H", "Ca"), "SW": ("S", "Switch"), "RT": ("R", "Rt")}
_DEVICE = re.compile(r"devid=(0x[0-9a-f]+)")
LANE_BITS_PER_S = {"SDR": 2.5e9, "DDR": 5e9, "QDR": 10e9, "FDR10": 10.3e9, "FDR": 14e9}
LANE_BITS_PER_S |= {"EDR": 25e9, "HDR": 50e9, "NDR": 100e9, "XDR": 200e9}


@dataclass(frozen=True)
class FabricNode:
    """``kind`` is ``Switch``, ``Ca`` (a host's adapter) or ``Rt`` (a router); ``model`` the number of its device."""

    kind: str
    description: str
    model: str | None


@dataclass(frozen=True)
class FabricLink:
    """A link between two ports, each a node's name and a number; ``line`` is the first that says it."""

    ends: tuple[tuple[str, int], tuple[str, int]]
    width: int
    speed: str
    line: str

    @property
    def bits_per_s(self) -> float:
        return self.width * LANE_BITS_PER_S[self.speed]


@dataclass(frozen=True)
class Fabric:
    nodes: Mapping[str, FabricNode]
    links: Sequence[FabricLink]


def is_ibnetdiscover(text: str) -> bool:
    """Whether a text lists nodes and their links."""
    lines = [line.strip() for line in text.splitlines()]
    return any(map(_LISTED.fullmatch, lines)) or (any(map(_NODE.fullmatch, lines)) and any(map(_PORT.fullmatch, lines)))


def parse(text: str) -> Fabric:
    """All nodes, and each link once: both ends say it. The list of ports of ``-p`` says no models."""
    nodes: dict[str, FabricNode] = {}
    links: dict[frozenset[tuple[str, int]], FabricLink] = {}
    model: str | None = None
    node = ""
    for line in map(str.strip, text.splitlines()):
        if match := _DEVICE.fullmatch(line):
            model = match[1]
        elif match := _NODE.fullmatch(line):
            node = match[2]
            nodes[node] = FabricNode(match[1], match[3] or node, model)
            model = None
        elif node and (match := _PORT.fullmatch(line)) and match[5] in LANE_BITS_PER_S:
            ends = (node, int(match[1])), (match[2], int(match[3]))
            links.setdefault(frozenset(ends), FabricLink(ends, int(match[4]), match[5], line))
        elif (match := _LISTED.fullmatch(line)) and match[5] in LANE_BITS_PER_S:
            first, second = f"{_KINDS[match[1]][0]}-{match[3]:0>16}", f"{_KINDS[match[6]][0]}-{match[8]:0>16}"
            nodes.setdefault(first, FabricNode(_KINDS[match[1]][1], match[9], None))
            nodes.setdefault(second, FabricNode(_KINDS[match[6]][1], match[10], None))
            ends = (first, int(match[2])), (second, int(match[7]))
            links.setdefault(frozenset(ends), FabricLink(ends, int(match[4]), match[5], line))
        elif not line:
            node = ""
    return Fabric(nodes, tuple(links.values()))
