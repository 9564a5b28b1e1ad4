"""``iblinkinfo``: every port of an InfiniBand fabric, its state, width and speed, and what both ends could be.

Source: linux-rdma/rdma-core, ``infiniband-diags/iblinkinfo.c`` and ``libibnetdisc/src/ibnetdisc.c``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NODE = re.compile(r"(?:CA|Switch|Router): (?:0x[0-9a-f]+ )?(?P<name>.*):")
_PORT = re.compile(
    r'(?:0x[0-9a-f]+ (?:"\s*(?P<name>[^"]*)" )?)?\s*(?P<lid>\d+)\s+(?P<port>\d+)\[\s*\d*\s*\] ==\((?P<link>[^)]*'
    r"(?:\([^)]*\)[^)]*)*)\)(?: \(HOQ[^)]*\))?==>\s*(?P<remote>.*)"
)
_LINK = re.compile(
    r"\s*(?:(?P<width>\d+)X\s+(?P<lane>[\d.]+) Gbps(?: \([^)]*\))?\s+)?(?P<state>\w+)/\s*(?P<physical>\w+)"
)
_REMOTE = re.compile(r'(?:0x[0-9a-f]+\s+)?\d+\s+(?P<port>\d+)\[\s*\d*\s*\] "(?P<name>.*)" \((?P<could>.*)\)')
_COULD = re.compile(r"Could be (?P<what>\d+X|[\w. ()]+? Gbps)")


@dataclass(frozen=True)
class LinkPort:
    """One port, as its own end says it.

    Attributes
    ----------
    width, lane_gbit_per_s
        None where the port is down.
    remote, remote_port
        Empty and None where nothing is joined.
    could
        What both ends could be and are not, in rdma-core's words: ``4X``, ``25.78125 Gbps``.
    """

    node: str
    port: int
    state: str
    physical: str
    width: int | None
    lane_gbit_per_s: float | None
    remote: str
    remote_port: int | None
    could: tuple[str, ...]
    line: str

    @property
    def where(self) -> str:
        return f"{self.node} port {self.port}"

    @property
    def ends(self) -> frozenset[tuple[str, int | None]]:
        return frozenset({(self.node, self.port), (self.remote, self.remote_port)})


def is_iblinkinfo(text: str) -> bool:
    return any(_PORT.fullmatch(line.strip()) for line in text.splitlines())


def parse(text: str) -> tuple[LinkPort, ...]:
    """All ports, in the order of the text."""
    return tuple(_ports(text))


def _ports(text: str) -> Iterator[LinkPort]:
    node = ""
    for line in map(str.strip, text.splitlines()):
        if head := _NODE.fullmatch(line):
            node = head["name"]
        elif (said := _PORT.fullmatch(line)) and (link := _LINK.fullmatch(said["link"])):
            remote = _REMOTE.fullmatch(said["remote"].strip())
            name = said["name"].strip() if said["name"] is not None else node
            yield LinkPort(
                node=name or f"lid {said['lid']}",
                port=int(said["port"]),
                state=link["state"],
                physical=link["physical"],
                width=int(link["width"]) if link["width"] else None,
                lane_gbit_per_s=float(link["lane"]) if link["lane"] else None,
                remote=remote["name"] if remote else "",
                remote_port=int(remote["port"]) if remote else None,
                could=tuple(each["what"] for each in _COULD.finditer(remote["could"])) if remote else (),
                line=line,
            )
