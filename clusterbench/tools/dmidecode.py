"""``dmidecode``: what the firmware says of processors, memory modules and power supplies.

Source: SMBIOS specification (DMTF DSP0134), types 1, 3, 4, 17 and 39; dmidecode's ``dmidecode.c``. What it calls GB
is GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_HANDLE = re.compile(r"Handle 0x[0-9A-Fa-f]+, DMI type \d+, \d+ bytes.*")
_FIELD = re.compile(r"\s*([A-Z][^:]*): ?(.*)")
_SIZE = re.compile(r"(\d+) (MB|GB|TB|MiB|GiB|TiB)")
_SPEED = re.compile(r"(\d+) (?:MT/s|MHz)")
_FACTOR = {"M": 2**20, "G": 2**30, "T": 2**40}
_SOCKET = re.compile(r"(?i)(?<![a-z])(?:P|CPU|PROC(?:ESSOR)?|SOCKET|SKT)[ _-]?(\d)")
_OF_DELL = re.compile(r"([A-H])(\d{1,2})")
_VIRTUAL = re.compile(
    r"(?i)system is a virtual machine"
    r"|product name: .*(?:virtual machine|vmware|kvm|hvm domu|google compute|standard pc)"
    r"|manufacturer: (?:qemu|vmware|amazon ec2|google|xen|alibaba cloud)"
)


@dataclass(frozen=True)
class MemorySlot:
    """A slot and the module in it.

    Attributes
    ----------
    locator
        The board's name of it: ``P1-DIMMA1``.
    socket, place
        The processor that it belongs to, and its name without that; None where the names do not say it.
    size_bytes
        None where the slot is empty.
    transfers_per_s, rated_transfers_per_s
        What it is configured to, and what the module can; None where it is not said.
    line
        Of the locator, as printed; ``speed_line`` is that of the speed.
    """

    locator: str
    socket: str | None
    place: str | None
    size_bytes: int | None
    transfers_per_s: float | None
    rated_transfers_per_s: float | None
    line: str
    speed_line: str


@dataclass(frozen=True)
class Dmidecode:
    """``states`` are of processors, chassis and power supplies: of what, the field, and its line as printed."""

    is_virtual: bool
    slots: Sequence[MemorySlot]
    states: Sequence[tuple[str, str, str]]


def is_dmidecode(text: str) -> bool:
    """Whether a text has blocks of it."""
    return any(map(_HANDLE.fullmatch, map(str.strip, text.splitlines()))) or "# dmidecode " in text[:200]


def parse(text: str) -> Dmidecode:
    """All memory slots, and what is said of the state of other parts."""
    slots: list[MemorySlot] = []
    states: list[tuple[str, str, str]] = []
    for title, fields in _blocks(text):
        if title == "Memory Device" and "Locator" in fields:
            slots += _slots(fields)
        elif title in ("Processor Information", "System Power Supply", "Chassis Information"):
            name = fields.get("Socket Designation", fields.get("Location", ("", "")))[0]
            words = {"Status", "Power Supply State", "Thermal State"} & fields.keys()
            states += [(f"{title} {name}".strip(), *fields[word]) for word in sorted(words)]
    return Dmidecode(_VIRTUAL.search(text) is not None, slots, states)


def _blocks(text: str) -> Iterator[tuple[str, Mapping[str, tuple[str, str]]]]:
    """Title and fields of each block: the value, and the line as printed."""
    title, fields = "", dict[str, tuple[str, str]]()
    for line in map(str.rstrip, text.splitlines()):
        if match := _FIELD.fullmatch(line):  # of a text that was copied the blanks before it may be gone
            fields.setdefault(match[1], (match[2].strip(), line.strip()))
        elif line and (not line[0].isspace() or not fields):
            if fields:
                yield title, fields
            title, fields = line, {}
    if fields:
        yield title, fields


def _slots(fields: Mapping[str, tuple[str, str]]) -> Iterator[MemorySlot]:
    value = {name: said for name, (said, _) in fields.items()}
    size = _SIZE.fullmatch(value.get("Size", ""))
    is_empty = "No Module" in value.get("Size", "") or "Not Installed" in value.get("Size", "")
    if not is_empty and (size is None or "DDR" not in value.get("Type", "")):
        return  # not memory of the host, or a text that is cut within it
    speed = next((name for name in ("Configured Memory Speed", "Configured Clock Speed") if name in fields), "")
    socket, place = _place(value["Locator"], value.get("Bank Locator", ""))
    yield MemorySlot(
        locator=value["Locator"],
        socket=socket,
        place=place,
        size_bytes=None if size is None else int(size[1]) * _FACTOR[size[2][0]],
        transfers_per_s=_speed(value.get(speed, "")),
        rated_transfers_per_s=_speed(value.get("Speed", "")),
        line=fields["Locator"][1],
        speed_line=fields[speed][1] if speed else "",
    )


def _speed(said: str) -> float | None:
    match = _SPEED.fullmatch(said)
    return float(match[1]) * 1e6 if match else None


def _place(locator: str, bank: str) -> tuple[str | None, str | None]:
    """The socket and the name within it: ``P1-DIMMA1`` is ``DIMMA1`` of 1, Dell's ``B3`` is ``3`` of B."""
    if match := _OF_DELL.fullmatch(locator):
        return match[1], match[2]
    for text in (locator, f"{bank} {locator}"):
        if match := _SOCKET.search(text):
            return match[1], f"{text[: match.start()]}{text[match.end() :]}".strip(" _-")
    return None, None
