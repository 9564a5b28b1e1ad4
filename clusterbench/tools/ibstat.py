"""``ibstat`` of infiniband-diags: every RDMA device and its ports; what ``ib_device_status`` made of it, too.

Source: linux-rdma/rdma-core, ``infiniband-diags/ibstat.c``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterbench.errors import ToolError

_DEVICE = re.compile(r"CA '([^']+)'")
_PORT = re.compile(r"\s*Port (\d+):")
_FIELD = re.compile(r"\s*([A-Z][\w ]*): (.*)")
_FAILED = re.compile(r"ibpanic: .*|ibwarn: .*(?i:fail|can't|couldn't|error|invalid|no such).*|ibstat: .*")


_NO_DEVICE = re.compile(r"ibpanic\W.*stat of IB device")


@dataclass(frozen=True)
class IbstatPort:
    """A port in ibstat's words: ``Active``, ``LinkUp``, ``InfiniBand``; ``rate_gb`` is in Gb/s."""

    number: int
    state: str
    physical_state: str
    rate_gb: float | None
    lid: int | None
    subnet_manager_lid: int | None
    link_layer: str | None


@dataclass(frozen=True)
class IbstatDevice:
    """A device with what it says of itself; ``ports`` may be fewer than ``num_ports`` where ibstat failed there."""

    name: str
    model: str | None
    firmware: str | None
    num_ports: int | None
    ports: tuple[IbstatPort, ...]


@dataclass(frozen=True)
class Ibstat:
    """All devices, and what ibstat said last where it failed at one: the devices behind that are not listed.

    ``cut`` is the device or port within which the text ends; of a port without its state nothing is listed.
    """

    devices: tuple[IbstatDevice, ...]
    failure: str
    cut: str = ""


Fields = dict[str, str]


def is_ibstat(text: str) -> bool:
    """Whether a text lists a device, or says that ibstat failed at the first."""
    return ("CA '" in text and "Physical state" in text) or _NO_DEVICE.search(text) is not None


def parse(text: str) -> Ibstat:
    """Every device in the order of the text.

    Raises
    ------
    ToolError
        If no device is named and no failure either, or a port that others follow has no state.
    """
    if text.lstrip().startswith("{"):
        return _of_json(text)
    devices: list[tuple[str, Fields, dict[int, Fields]]] = []
    failure = ""
    for line in map(str.rstrip, text.splitlines()):
        if device := _DEVICE.fullmatch(line.strip()):
            devices.append((device[1], {}, {}))
        elif _FAILED.fullmatch(line.strip()):
            failure = line.strip()
        elif devices and (port := _PORT.fullmatch(line)):
            devices[-1][2][int(port[1])] = {}
        elif devices and (field := _FIELD.fullmatch(line)):
            _, own, ports = devices[-1]
            (ports[[*ports][-1]] if ports else own)[field[1]] = field[2].strip()
    if not devices and not failure:
        raise ToolError(f"ibstat names no device: {text.strip()[-200:]!r}")
    cut = _cut(devices, text) if devices and not failure else ""
    return Ibstat(tuple(_device(*device) for device in devices), failure, cut)


_STATES = {"State", "Physical state"}
_LAYERS = ("InfiniBand", "Ethernet")


def _cut(devices: Sequence[tuple[str, Fields, dict[int, Fields]]], text: str) -> str:
    """Where the text ends too early, with what may be half a word taken out of the last port."""
    name, own, ports = devices[-1]
    fields = ports[[*ports][-1]] if ports else own
    if not text.endswith("\n") and fields and fields.get("Link layer") not in _LAYERS:
        fields.popitem()
    is_short = len(ports) < (_number(own.get("Number of ports")) or 1)
    if not ports:
        return name
    place = f"{name} port {[*ports][-1]}"
    others = [each for *_, of_device in devices for each in of_device.values() if each is not fields]
    usual = {"Rate", *_STATES}.union(set[str]().union(*others[:1]).intersection(*others))
    is_cut = is_short or not usual <= {*fields}
    if not {*fields} >= _STATES:
        ports.popitem()
    return place if is_cut else ""


def _of_json(text: str) -> Ibstat:
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ToolError(f"this is no JSON of ibstat: {error}") from None
    fields = said if isinstance(said, dict) else {}
    devices = tuple(_devices_of_json(fields))
    failure = f"ibpanic: {fields['ibpanic']}" if isinstance(fields.get("ibpanic"), str) else ""
    if not devices and not failure:
        raise ToolError(f"ibstat names no device: {text.strip()[-200:]!r}")
    return Ibstat(devices, failure)


def _devices_of_json(said: Mapping[str, object]) -> Iterator[IbstatDevice]:
    for name, own in said.items():
        device = _DEVICE.fullmatch(name)
        if device is None or not isinstance(own, Mapping):
            continue
        ports = {
            int(port[1]): {str(key): str(value) for key, value in fields.items()}
            for key, fields in own.items()
            if isinstance(fields, Mapping) and (port := _PORT.fullmatch(f" {key}"))
        }
        yield _device(device[1], {str(key): str(value) for key, value in own.items()}, ports)


def _device(name: str, own: Fields, ports: Mapping[int, Fields]) -> IbstatDevice:
    return IbstatDevice(
        name,
        own.get("CA type"),
        own.get("Firmware version"),
        _number(own.get("Number of ports")),
        tuple(_port(name, number, fields) for number, fields in ports.items()),
    )


def _port(name: str, number: int, fields: Fields) -> IbstatPort:
    if "State" not in fields or "Physical state" not in fields:
        raise ToolError(f"ibstat says no state of {name} port {number}: the text may be cut there")
    rate = fields.get("Rate", "")
    return IbstatPort(
        number,
        fields["State"],
        fields["Physical state"],
        float(rate) if re.fullmatch(r"\d+(?:\.\d+)?", rate) else None,
        _number(fields.get("Base lid")),
        _number(fields.get("SM lid")),
        fields.get("Link layer"),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
