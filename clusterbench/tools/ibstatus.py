"""``ibstatus`` of infiniband-diags: the ports of all RDMA devices, in the kernel's words.

Source: linux-rdma/rdma-core, ``infiniband-diags/scripts/ibstatus``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError

_PORT = re.compile(r"Infiniband device '([^']+)' port (\d+) status:")
_FIELD = re.compile(r"\s*([a-z][a-z_ ]*):\s*(.*)")


@dataclass(frozen=True)
class IbstatusPort:
    """A port: ``4: ACTIVE``, ``5: LinkUp``, ``200 Gb/sec (4X HDR)``, ``InfiniBand``."""

    device: str
    number: int
    state: str
    physical_state: str
    rate: str
    lid: int | None
    subnet_manager_lid: int | None
    link_layer: str | None
    gid: str | None


def parse(text: str) -> tuple[IbstatusPort, ...]:
    """Every port in the order of the text.

    Raises
    ------
    ToolError
        If no port is named, or one has no state or rate.
    """
    ports: list[tuple[str, int, dict[str, str]]] = []
    for line in map(str.rstrip, text.splitlines()):
        if port := _PORT.fullmatch(line.strip()):
            ports.append((port[1], int(port[2]), {}))
        elif ports and (field := _FIELD.fullmatch(line)):
            ports[-1][2][field[1]] = field[2].strip()
    if not ports:
        raise ToolError(f"ibstatus names no port: {text.strip()[-200:]!r}")
    return tuple(_port(*port) for port in ports)


def _port(device: str, number: int, fields: dict[str, str]) -> IbstatusPort:
    absent = [name for name in ("state", "phys state", "rate") if name not in fields]
    if absent:
        raise ToolError(f"ibstatus says no {absent[0]} of {device} port {number}: the text may be cut there")
    return IbstatusPort(
        device,
        number,
        fields["state"],
        fields["phys state"],
        fields["rate"],
        _number(fields.get("base lid")),
        _number(fields.get("sm lid")),
        fields.get("link_layer"),
        fields.get("default gid"),
    )


def _number(text: str | None) -> int | None:
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None
