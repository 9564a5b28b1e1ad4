"""``ibv_devinfo`` of rdma-core: every RDMA device and its ports, with the packets' size.

Source: linux-rdma/rdma-core, ``libibverbs/examples/devinfo.c``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError

_DEVICE = re.compile(r"hca_id:\s*(\S+)")
_PORT = re.compile(r"port:\s*(\d+)")
_FIELD = re.compile(r"\s+([a-z][\w ]*):\s*(.*)")


@dataclass(frozen=True)
class DevinfoPort:
    """A port in its words: ``PORT_ACTIVE (4)``, ``InfiniBand``; packets in bytes."""

    number: int
    state: str
    active_mtu_bytes: int | None
    max_mtu_bytes: int | None
    lid: int | None
    subnet_manager_lid: int | None
    link_layer: str | None


@dataclass(frozen=True)
class DevinfoDevice:
    """A device: firmware, board and the number of its model."""

    name: str
    transport: str | None
    firmware: str | None
    board: str | None
    part: str | None
    ports: tuple[DevinfoPort, ...]


def parse(text: str) -> tuple[DevinfoDevice, ...]:
    """Every device in the order of the text.

    Raises
    ------
    ToolError
        If no device is named, or a port has no state.
    """
    devices: list[tuple[str, dict[str, str], dict[int, dict[str, str]]]] = []
    for line in map(str.rstrip, text.splitlines()):
        if device := _DEVICE.fullmatch(line.strip()):
            devices.append((device[1], {}, {}))
        elif devices and (port := _PORT.fullmatch(line.strip())):
            devices[-1][2][int(port[1])] = {}
        elif devices and (field := _FIELD.fullmatch(line)):
            _, own, ports = devices[-1]
            (ports[[*ports][-1]] if ports else own)[field[1]] = field[2].strip()
    if not devices:
        raise ToolError(f"ibv_devinfo names no device: {text.strip()[-200:]!r}")
    return tuple(_device(*device) for device in devices)


def _device(name: str, own: dict[str, str], ports: dict[int, dict[str, str]]) -> DevinfoDevice:
    return DevinfoDevice(
        name,
        own.get("transport"),
        own.get("fw_ver"),
        own.get("board_id"),
        own.get("vendor_part_id"),
        tuple(_port(name, number, fields) for number, fields in ports.items()),
    )


def _port(name: str, number: int, fields: dict[str, str]) -> DevinfoPort:
    if "state" not in fields:
        raise ToolError(f"ibv_devinfo says no state of {name} port {number}: the text may be cut there")
    return DevinfoPort(
        number,
        fields["state"],
        _number(fields.get("active_mtu")),
        _number(fields.get("max_mtu")),
        _number(fields.get("port_lid")),
        _number(fields.get("sm_lid")),
        fields.get("link_layer"),
    )


def _number(text: str | None) -> int | None:
    """``4096`` of ``4096 (5)``."""
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None
