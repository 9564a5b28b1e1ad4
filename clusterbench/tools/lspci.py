"""``lspci -vvv`` of pciutils: what each device is, its link, and what access control services its bridges have on.

Source: pciutils, ``lspci.c``, ``ls-caps.c``, ``ls-ecaps.c``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError

_DEVICE = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:]+): (.+)")
_BUSES = re.compile(r"\s+Bus: primary=[0-9a-f]+, secondary=([0-9a-f]+), subordinate=([0-9a-f]+).*")
_ACS = re.compile(r"\s+ACSCtl:\s*(.*)")
_CAN = re.compile(r"\s+LnkCap:(?:.*, Speed ([\d.]+)GT/s)?.*, Width x(\d+)\b.*")
_STATUS = re.compile(r"\s+LnkSta:(?:\s*Speed ([\d.]+)GT/s)?.*\bWidth x(\d+)\b( \(downgraded\))?.*")


@dataclass(frozen=True)
class PciDevice:
    """One device.

    Attributes
    ----------
    kind, name
        ``3D controller`` and ``NVIDIA Corporation ...``.
    buses
        Those behind a bridge, the first and the last; None where it is none.
    acs
        Access control services that are on, ``SrcValid``; None where the device has none, or root was not asked.
    width, most_width
        Lanes of the link, and those that the device has.
    gigatransfers_per_s, most_gigatransfers_per_s
        Of the link now, and what the device can do; an idle GPU lowers its speed.
    says_narrow
        Whether lspci itself says that the link has fewer lanes than the device.
    """

    address: str
    kind: str
    name: str
    buses: tuple[int, int] | None
    acs: tuple[str, ...] | None
    width: int | None
    most_width: int | None
    gigatransfers_per_s: float | None
    most_gigatransfers_per_s: float | None
    says_narrow: bool = False

    @property
    def is_narrow(self) -> bool | None:
        """Whether the link has fewer lanes than the device; None where one of them is not known."""
        if self.says_narrow and self.width:
            return True
        return None if self.width is None or self.most_width is None else self.width < self.most_width

    @property
    def bus(self) -> int:
        return int(self.address.split(":")[-2], 16)

    @property
    def domain(self) -> str:
        return self.address.split(":")[0] if self.address.count(":") == 2 else "0000"

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("NVIDIA") and ("3D controller" in self.kind or "VGA" in self.kind)

    @property
    def is_rdma(self) -> bool:
        return self.name.startswith("Mellanox") and ("Infiniband" in self.kind or "Ethernet" in self.kind)

    def is_slot_of(self, other: PciDevice) -> bool:
        """Whether another device hangs on this bridge itself."""
        return self.is_above(other) and self.buses is not None and self.buses[0] == other.bus

    def is_above(self, other: PciDevice) -> bool:
        """Whether another device is behind this bridge."""
        return self.buses is not None and self.domain == other.domain and self.buses[0] <= other.bus <= self.buses[1]


def is_lspci(text: str) -> bool:
    """Whether a text is that of ``-vvv``: devices, with what they can do; or with their links alone, by grep."""
    lines = text.splitlines()[:200]
    tells = "Capabilities: [" in text or any(map(_STATUS.fullmatch, lines))
    return tells and any(map(_DEVICE.fullmatch, lines))


def parse(text: str) -> tuple[PciDevice, ...]:
    """Every device in the order of the text.

    Raises
    ------
    ToolError
        If no device is named.
    """
    blocks: list[tuple[re.Match[str], list[str]]] = []
    for line in map(str.rstrip, text.splitlines()):
        if device := _DEVICE.fullmatch(line):
            blocks.append((device, []))
        elif blocks:
            blocks[-1][1].append(line)
    if not blocks:
        raise ToolError(f"lspci names no device: {text.strip()[-200:]!r}")
    return tuple(_device(device, lines) for device, lines in blocks)


def _device(device: re.Match[str], lines: list[str]) -> PciDevice:
    buses = acs = width = most_width = speed = most_speed = None
    says_narrow = False
    for line in lines:
        if match := _BUSES.fullmatch(line):
            buses = int(match[1], 16), int(match[2], 16)
        elif match := _ACS.fullmatch(line):
            acs = tuple(word[:-1] for word in match[1].split() if word.endswith("+"))
        elif match := _STATUS.fullmatch(line):
            speed = float(match[1]) if match[1] else None
            says_narrow = match[3] is not None
            width = int(match[2]) or None  # a virtual function has no link of its own, and says x0
        elif match := _CAN.fullmatch(line):
            most_speed = float(match[1]) if match[1] else None
            most_width = int(match[2])
    return PciDevice(device[1], device[2], device[3], buses, acs, width, most_width, speed, most_speed, says_narrow)
