"""``show_gids``: the addresses (GIDs) of RDMA ports, their version of RoCE and the interface behind them.

Source: Mellanox/mlnx-tools, ``sbin/show_gids``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER = re.compile(r"DEV\s+PORT\s+INDEX\s+GID\b.*")
_ROW = re.compile(
    r"(?P<device>[\w.-]+)\s+(?P<port>\d+)\s+(?P<index>\d+)\s+(?P<gid>(?:[0-9a-f]{4}:){7}[0-9a-f]{4})"
    r"(?:\s+(?P<ipv4>\d+\.\d+\.\d+\.\d+))?(?:\s+[Vv](?P<version>[12]))?(?:\s+(?P<interface>[\w.@-]+))?"
)
_END = re.compile(r"n_gids_found=(?P<number>\d+)")
_LINK_LOCAL = re.compile(r"fe[89ab]")


@dataclass(frozen=True)
class GidRow:
    """One address. ``version`` of RoCE is None where the kernel does not say it."""

    device: str
    port: int
    index: int
    gid: str
    ipv4: str | None
    version: int | None
    interface: str
    line: str

    @property
    def where(self) -> str:
        return f"{self.device} port {self.port}"

    @property
    def is_link_local(self) -> bool:
        return _LINK_LOCAL.match(self.gid) is not None

    @property
    def is_ipv4(self) -> bool:
        """Whether it stands for an address of IPv4 that other hosts can reach."""
        return self.gid.startswith("0000:0000:0000:0000:0000:ffff:") and not (self.ipv4 or "").startswith("169.254.")


@dataclass(frozen=True)
class GidTable:
    """All rows; ``is_whole`` where the text ends with as many as it counts."""

    rows: tuple[GidRow, ...]
    is_whole: bool


def is_show_gids(text: str) -> bool:
    lines = _lines(text)
    return any(map(_HEADER.fullmatch, lines)) or (any(map(_END.fullmatch, lines)) and any(map(_ROW.fullmatch, lines)))


def _lines(text: str) -> list[str]:
    """Without the marks of comments, in which scripts and sources keep such a table."""
    return [line.strip().lstrip("#* ") for line in text.splitlines()]


def parse(text: str) -> GidTable:
    rows, number = [], None
    for line in _lines(text):
        if row := _ROW.fullmatch(line):
            version, interface = row["version"], row["interface"] or ""
            rows.append(
                GidRow(
                    row["device"],
                    int(row["port"]),
                    int(row["index"]),
                    row["gid"],
                    row["ipv4"],
                    int(version) if version else None,
                    interface,
                    line,
                )
            )
        elif end := _END.fullmatch(line):
            number = int(end["number"])
    return GidTable(tuple(rows), number == len(rows))
