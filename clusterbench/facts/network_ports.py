from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
SOCKETS = "/proc/net/sockstat"


@dataclass(frozen=True, kw_only=True)
class NetworkPorts(Facts):
    """Ports that the kernel gives to connections which ask for none, and how many TCP sockets there are.

    ``tcp_waiting`` are in the state TIME_WAIT and hold their port for a minute.
    """

    first: int | None
    last: int | None
    reserved: str | None
    tcp_in_use: int | None
    tcp_waiting: int | None

    @classmethod
    def read(cls, files: Files) -> Self:
        bounds = re.fullmatch(r"(\d{1,5})\s+(\d{1,5})", files.text(RANGE) or "")
        tcp = re.search(r"^TCP: inuse (\d{1,9}) orphan \d+ tw (\d{1,9})", files.text(SOCKETS) or "", re.MULTILINE)
        return cls(
            first=int(bounds[1]) if bounds else None,
            last=int(bounds[2]) if bounds else None,
            reserved=(files.text("/proc/sys/net/ipv4/ip_local_reserved_ports", optional=True) or "")[:200] or None,
            tcp_in_use=int(tcp[1]) if tcp else None,
            tcp_waiting=int(tcp[2]) if tcp else None,
            unread=files.unread,
        )
