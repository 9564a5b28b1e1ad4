from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import NOT_ALLOWED, Facts, Files

FOLDER = "/sys/bus/pci/devices"
CONFIG = f"{FOLDER}/*/config"
UPTIME = "/proc/uptime"

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MAKERS_OF_GPUS = ("0x10de", "0x1002")
_WHOLE_BYTES, _PLAIN_BYTES, _WITHOUT_ROOT_BYTES = 4096, 256, 64
_EXPRESS, _ACS = 0x10, 0x0D
_LARGEST_PAYLOAD = 5  # 4096 bytes
_MOST_CAPABILITIES = 96
_MOST_DEVICES = 256

# PCI Express base specification, ACS control register.
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


@dataclass(frozen=True)
class Device:
    """A GPU, an RDMA card, or a bridge above one of them; None where it was not read.

    Attributes
    ----------
    kind
        ``gpu``, ``nic`` or ``bridge``.
    above
        Address of the bridge that it hangs on.
    gigatransfers_per_s, width
        Of the link now, and ``most_`` what the device can do; an idle GPU lowers its speed.
    correctable, nonfatal, fatal
        Errors that advanced error reporting (AER) counted since the kernel started.
    relaxed_ordering
        Whether it may mark its writes so: in its configuration, which root alone reads, as ``acs``.
    acs
        What access control services are on, as ``lspci`` calls them: ``SrcValid``, ``ReqRedir``; none where the bridge
        does not have them.
    payload_bytes, most_payload_bytes
        Of one packet of data, as it is set and what the device can: in its configuration, too.
    """

    address: str
    kind: str
    above: str | None
    gigatransfers_per_s: float | None
    most_gigatransfers_per_s: float | None
    width: int | None
    most_width: int | None
    correctable: int | None
    nonfatal: int | None
    fatal: int | None
    relaxed_ordering: bool | None
    acs: tuple[str, ...] | None
    driver: str | None = None
    payload_bytes: int | None = None
    most_payload_bytes: int | None = None

    @property
    def place(self) -> str:
        return f"{ {'gpu': 'GPU', 'nic': 'network card', 'bridge': 'PCIe bridge'}[self.kind] } {self.address}"

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.address}"

    @property
    def is_virtual(self) -> bool:
        """Whether it is a virtual function, as cards of virtual machines are.

        Its registers of the link's state, of relaxed ordering and payload read zero; the card's own hold for it.

        Source: PCI Express base specification, single root I/O virtualization, fields that a VF does not have.
        """
        return self.most_width is not None and self.width is None and self.gigatransfers_per_s is None


@dataclass(frozen=True, kw_only=True)
class Pcie(Facts):
    """GPUs and RDMA cards on the PCIe bus with the bridges above them; None where there is no such bus to look at.

    Virtual functions whose card is on the bus itself are left out: a host may have hundreds, and their link is the
    card's. Of more than 256 devices the rest is not looked at, and ``unread`` says so of :data:`FOLDER`.
    """

    devices: tuple[Device, ...] | None
    uptime_s: float | None

    @classmethod
    def read(cls, files: Files) -> Self:
        if not files.exists(FOLDER):
            files.unread[FOLDER] = "is not there"
            return cls(devices=None, uptime_s=_uptime(files), unread=files.unread)
        kinds = {address: kind for address in files.names(FOLDER) if (kind := _kind(files, address))}
        above = {address: _above(files, address) for address in kinds}
        bridges = dict.fromkeys((each for chain in above.values() for each in chain if each not in kinds), "bridge")
        chains = above | {chain[number]: chain[:number] for chain in above.values() for number in range(len(chain))}
        every = [*(kinds | bridges).items()]
        if len(every) > _MOST_DEVICES:
            why = f"shows {len(every)} GPUs, network cards and bridges, and {_MOST_DEVICES} were looked at"
            files.unread[FOLDER] = why
        looked_at = sorted(every[:_MOST_DEVICES])
        devices = tuple(_device(files, address, kind, chains.get(address, ())) for address, kind in looked_at)
        return cls(devices=devices, uptime_s=_uptime(files), unread=files.unread)


def _kind(files: Files, address: str) -> str:
    number = files.text(f"{FOLDER}/{address}/class", optional=True) or ""
    if files.exists(f"{FOLDER}/{address}/physfn"):  # a virtual function's link to its card
        return ""
    if number.startswith(("0x03", "0x12")):
        vendor = files.text(f"{FOLDER}/{address}/vendor", optional=True)
        return "gpu" if vendor in _MAKERS_OF_GPUS else ""
    return "nic" if number.startswith("0x02") and files.names(f"{FOLDER}/{address}/infiniband") else ""


def _above(files: Files, address: str) -> tuple[str, ...]:
    """Addresses of the bridges above a device, from the CPU on."""
    folder = (files.root / FOLDER.lstrip("/") / address).resolve()
    return tuple(part for part in folder.parts[:-1] if _ADDRESS.fullmatch(part))


def _device(files: Files, address: str, kind: str, above: tuple[str, ...]) -> Device:
    folder = f"{FOLDER}/{address}"
    config = files.data(f"{folder}/config", _WHOLE_BYTES)
    if config is not None and len(config) <= _WITHOUT_ROOT_BYTES:
        files.unread[CONFIG] = NOT_ALLOWED
    acs = access_control(config or b"")
    payload_bytes, most_payload_bytes = payloads(config or b"")
    return Device(
        address=address,
        kind=kind,
        above=above[-1] if above else None,
        gigatransfers_per_s=_speed(files.text(f"{folder}/current_link_speed", optional=True)),
        most_gigatransfers_per_s=_speed(files.text(f"{folder}/max_link_speed", optional=True)),
        width=_lanes(files.text(f"{folder}/current_link_width", optional=True)),
        most_width=_lanes(files.text(f"{folder}/max_link_width", optional=True)),
        correctable=_total(files.text(f"{folder}/aer_dev_correctable", optional=True), "TOTAL_ERR_COR"),
        nonfatal=_total(files.text(f"{folder}/aer_dev_nonfatal", optional=True), "TOTAL_ERR_NONFATAL"),
        fatal=_total(files.text(f"{folder}/aer_dev_fatal", optional=True), "TOTAL_ERR_FATAL"),
        relaxed_ordering=relaxed_ordering(config or b""),
        acs=acs,
        driver=files.link(f"{folder}/driver") or "",
        payload_bytes=payload_bytes,
        most_payload_bytes=most_payload_bytes,
    )


def relaxed_ordering(config: bytes) -> bool | None:
    """Whether a device may mark its writes for relaxed ordering, of its configuration space.

    Bit 4 of the device control register of the PCI Express capability (PCI Express base specification).
    """
    control = _express(config, 8)
    return None if control is None else bool(control & 0x10)


def payloads(config: bytes) -> tuple[int | None, int | None]:
    """The most bytes of data in one packet, as it is set and what the device can.

    Bits 5 to 7 of the device control register, and 0 to 2 of the device capabilities: 128 bytes times a power of two,
    whose larger values are reserved (PCI Express base specification).
    """
    control, capabilities = _express(config, 8), _express(config, 4)
    as_set = None if control is None else control >> 5 & 7
    most = None if capabilities is None else capabilities & 7
    as_set, most = (number if number is not None and number <= _LARGEST_PAYLOAD else None for number in (as_set, most))
    return None if as_set is None else 128 << as_set, None if most is None else 128 << most


def _express(config: bytes, register: int) -> int | None:
    """The lower half of a register of the PCI Express capability."""
    place = next((place for number, place in _capabilities(config) if number == _EXPRESS), None)
    return None if place is None else _word(config, place + register)


def access_control(config: bytes) -> tuple[str, ...] | None:
    """The access control services that are on; None where the space was not given as far as its extended part."""
    if len(config) <= _PLAIN_BYTES:
        return None
    place = next((place for number, place in _extended_capabilities(config) if number == _ACS), None)
    if place is None:
        return ()
    control = _word(config, place + 6)
    return None if control is None else tuple(name for bit, name in enumerate(_ACS_BITS) if control >> bit & 1)


def _capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """Number and place of each capability. A list that loops or leaves the space ends there."""
    status, place = _word(config, 0x06), config[0x34] if len(config) > 0x34 else 0
    seen: set[int] = set()
    while status is not None and status & 0x10 and place >= 0x40 and place not in seen:
        if len(seen) >= _MOST_CAPABILITIES or place + 2 > min(len(config), _PLAIN_BYTES):
            return
        seen.add(place)
        yield config[place], place
        place = config[place + 1] & 0xFC


def _extended_capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """As :func:`_capabilities`, of the part from 256 bytes on."""
    place, seen = _PLAIN_BYTES, set[int]()
    while place >= _PLAIN_BYTES and place + 4 <= len(config) and place not in seen and len(seen) < _MOST_CAPABILITIES:
        seen.add(place)
        (header,) = struct.unpack_from("<I", config, place)
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, place
        place = header >> 20 & 0xFFC


def _word(config: bytes, place: int) -> int | None:
    return int.from_bytes(config[place : place + 2], "little") if place + 2 <= len(config) else None


def _speed(text: str | None) -> float | None:
    """``32.0 GT/s PCIe``; a virtual function says ``Unknown``.

    >>> _speed("32.0 GT/s PCIe"), _speed("Unknown")
    (32.0, None)
    """
    match = re.match(r"(\d{1,4}(?:\.\d{1,4})?) GT/s", text or "")
    return float(match[1]) if match else None


def _lanes(text: str | None) -> int | None:
    """Lanes of a link; a virtual function has 0, and a link that is down 255."""
    lanes = int(text) if text and re.fullmatch(r"\d{1,3}", text) else 0
    return lanes if lanes in (1, 2, 4, 8, 12, 16, 32) else None


def _total(text: str | None, name: str) -> int | None:
    rows: Iterable[list[str]] = (row.split() for row in (text or "").splitlines())
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == name and row[1].isdecimal()), None)


def _uptime(files: Files) -> float | None:
    match = re.match(r"\d{1,12}(\.\d+)?", files.text(UPTIME) or "")
    return float(match[0]) if match else None
