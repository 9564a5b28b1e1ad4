"""``ibv_devinfo`` of rdma-core: every RDMA device and its ports; what ``ib_device_info`` made of it, too.

With ``-v`` it says the state of the link, its width and its speed.

Source: linux-rdma/rdma-core, ``libibverbs/examples/devinfo.c``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError

_DEVICE = re.compile(r"hca_id:\s*(\S+)")
_PORT = re.compile(r"port:\s*(\d+)")
_MELLANOX = "0x02c9"
_FIELD = re.compile(r"\s*([a-z][\w ]*):\s*(.*)")


@dataclass(frozen=True)
class DevinfoPort:
    """A port in its words: ``PORT_ACTIVE (4)``, ``InfiniBand``; packets in bytes.

    ``physical_state`` (``LINK_UP (5)``) and ``rate_gb``, in Gb/s, are None without ``-v``.
    """

    number: int
    state: str
    active_mtu_bytes: int | None
    max_mtu_bytes: int | None
    lid: int | None
    subnet_manager_lid: int | None
    link_layer: str | None
    physical_state: str | None = None
    rate_gb: float | None = None


@dataclass(frozen=True)
class DevinfoDevice:
    """A device: firmware, board, the number of its model and that of its maker."""

    name: str
    transport: str | None
    firmware: str | None
    board: str | None
    part: str | None
    ports: tuple[DevinfoPort, ...]
    vendor: str | None = None

    @property
    def model(self) -> str | None:
        """As ibstat and the kernel call it: ``MT4129`` for Mellanox's 4129."""
        return f"MT{self.part}" if self.part and self.vendor == _MELLANOX else self.part


def is_devinfo(text: str) -> bool:
    """Whether a text lists a device, in lines or as JSON."""
    return "hca_id:" in text and "phys_port_cnt" in text


def parse(text: str) -> tuple[DevinfoDevice, ...]:
    """Every device in the order of the text.

    Raises
    ------
    ToolError
        If no device is named, or a port has no state.
    """
    if text.lstrip().startswith("{"):
        text = "\n".join(_lines_of_json(text))
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


def _lines_of_json(text: str) -> Iterator[str]:
    """Its lines: what is under a port, which may be under any other line, behind all that is the device's own."""
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ToolError(f"this is no JSON of ibv_devinfo: {error}") from None
    for device, fields in said.items() if isinstance(said, dict) else ():
        if isinstance(fields, dict):
            yield str(device)
            yield from (f"\t{name}: {value}" for name, value in fields.items() if isinstance(value, str))
            yield from _ports_of_json(fields)


def _ports_of_json(fields: Mapping[str, object]) -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            if _PORT.fullmatch(name.strip()):
                yield f"\t\t{name}"
                yield from (f"\t\t\t{word}: {said}" for word, said in value.items() if isinstance(said, str))
            yield from _ports_of_json(value)


def _device(name: str, own: dict[str, str], ports: dict[int, dict[str, str]]) -> DevinfoDevice:
    return DevinfoDevice(
        name,
        own.get("transport"),
        own.get("fw_ver"),
        own.get("board_id"),
        own.get("vendor_part_id"),
        tuple(_port(name, number, fields) for number, fields in ports.items()),
        own.get("vendor_id"),
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
        fields["phys_state"].rstrip(",") if "phys_state" in fields else None,
        _rate_gb(fields.get("active_width", ""), fields.get("active_speed", "")),
    )


def _rate_gb(width: str, speed: str) -> float | None:
    """200 of ``4X (2)`` and ``50.0 Gbps (64)``, the speed of one lane."""
    lanes, lane = re.match(r"(\d+)X\b", width), re.match(r"(\d+(?:\.\d+)?) Gbps\b", speed)
    return int(lanes[1]) * float(lane[1]) if lanes and lane else None


def _number(text: str | None) -> int | None:
    """``4096`` of ``4096 (5)``."""
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None
