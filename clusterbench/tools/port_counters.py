"""Error counters of InfiniBand ports as ``perfquery`` and ``ibqueryerrors`` print them, by the kernel's names for them.

Source: linux-rdma/rdma-core, ``libibmad/fields.c`` and ``infiniband-diags/ibqueryerrors.c``; the short names are of
OFED 1.x.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError

NAMES: Mapping[str, str] = {
    "SymbolErrorCounter": "symbol_error",
    "SymbolErrors": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkRecovers": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "LinkDowned": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "RcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "RcvRemotePhysErrors": "port_rcv_remote_physical_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "XmtDiscards": "port_xmit_discards",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "LinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "ExcBufOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped",
    "PortXmitWait": "port_xmit_wait",
    "XmtWait": "port_xmit_wait",
}
_PORT = re.compile(r"# Port (?:extended )?counters: (?P<where>.+? port \d+|.+?)(?: \(CapMask.*\))?\s*")
_COUNTER = re.compile(r"(?P<name>\w+):\.+(?P<value>\S+)\s*")
_NODE = re.compile(r'Errors for (?:(?P<guid>0x[0-9a-fA-F]+) )?"(?P<name>.*)"')
_ERRORS = re.compile(r"\s*GUID (?P<guid>0x[0-9a-fA-F]+) port (?P<port>\d+|ALL):(?P<counters>(?: \[.*\])+)\s*")
_ONE = re.compile(r"\[(?P<name>\w+) ==? (?P<value>\d+)")
_SUMMARY = re.compile(r"(?m)^\s*##\s+(?P<ports>\d+) ports checked, (?P<bad>\d+) ports have errors")


@dataclass(frozen=True)
class PortErrors:
    """Counters of one port and, of each, the line that says it."""

    where: str
    counters: Mapping[str, int]
    lines: Mapping[str, str]


@dataclass(frozen=True)
class FabricErrors:
    """Ports whose counters are above the limits of ``ibqueryerrors``; ``num_checked`` is None where its end is cut."""

    ports: tuple[PortErrors, ...]
    num_checked: int | None


def is_perfquery(text: str) -> bool:
    return re.search(r"(?m)^\s*# Port (?:extended )?counters: ", text) is not None


def is_ibqueryerrors(text: str) -> bool:
    return _SUMMARY.search(text) is not None or any(map(_ERRORS.fullmatch, text.splitlines()))


def parse_perfquery(text: str) -> tuple[PortErrors, ...]:
    """Each port with its counters; one that is printed twice, with and without ``-x``, is one port.

    Raises
    ------
    ToolError
        If an error counter is no number.
    """
    ports: dict[str, tuple[dict[str, int], dict[str, str]]] = {}
    where = None
    for line in text.splitlines():
        if header := _PORT.fullmatch(line.strip()):
            where = header["where"]
            ports.setdefault(where, ({}, {}))
        elif line.lstrip().startswith("#"):
            where = None
        elif where is not None and (said := _COUNTER.fullmatch(line.strip())) and said["name"] in NAMES:
            if not said["value"].isdecimal():
                raise ToolError(f"perfquery printed {said['value']!r} where a number belongs: {line.strip()!r}")
            counters, lines = ports[where]
            counters[NAMES[said["name"]]], lines[NAMES[said["name"]]] = int(said["value"]), line.strip()
    return tuple(PortErrors(place, *said) for place, said in ports.items())


def parse_ibqueryerrors(text: str) -> FabricErrors:
    """Each port that it names."""
    summary = _SUMMARY.search(text)
    return FabricErrors(tuple(_named(text)), int(summary["ports"]) if summary else None)


def _named(text: str) -> Iterator[PortErrors]:
    node = ""
    for line in text.splitlines():
        if header := _NODE.fullmatch(line.strip()):
            node = header["name"]
        elif (said := _ERRORS.fullmatch(line)) and said["port"] != "ALL":
            counters = {NAMES.get(name, name): int(value) for name, value in _ONE.findall(said["counters"])}
            where = f"{node or said['guid']} port {said['port']}"
            yield PortErrors(where, counters, dict.fromkeys(counters, line.strip()))
