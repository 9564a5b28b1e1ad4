from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self, TypedDict

from clusterbench.facts import Facts, Files
from clusterbench.tools import ethtool_stats

FOLDER = "/sys/class/net"
ETHTOOL = "ethtool --version"
_ETHERNET = 1  # linux/if_arp.h, ARPHRD_ETHER
COUNTERS = (
    *("rx_discards_phy", "tx_discards_phy", "rx_crc_errors_phy", "rx_symbol_err_phy", "link_down_events_phy"),
    *("rx_out_of_buffer", "tx_pause_storm_warning_events", "tx_pause_storm_error_events"),
)
_PRIORITY = re.compile(r"[rt]x_prio\d_(pause|pause_duration|discards)")
"""What is kept of some thousand counters that ``ethtool -S`` prints: of priorities, those that are not zero."""


class _Received(TypedDict):
    num_received: int | None
    damaged: Mapping[str, int] | None


@dataclass(frozen=True)
class Interface:
    """A physical Ethernet interface.

    Attributes
    ----------
    address, driver
        PCIe address and kernel module; of a virtual machine's, what its bus calls it.
    firmware
        As ``ethtool -i`` says.
    state, bond
        ``up``, ``down``; the bond it belongs to.
    bits_per_s
        None where the link is down or the driver tells none (virtio).
    carrier_downs
        How often it lost its link since the interface was made.
    pauses
        Whether it receives and sends pauses for all traffic, ``rx on, tx on`` (``ethtool -a``); priorities apart.
    ecn
        Of RoCE the priorities on which it tells senders of marks of congestion, and on which it slows down when it is
        told: ``{"np": (0, 3), "rp": ()}``. A role is left out where one of its files may not be read or the driver has
        none: NVIDIA's own has them (``mlnx_qos`` shows them).
    counters
        Since the driver was loaded (``ethtool -S``); None where they could not be read.
    num_received, damaged
        By the same, of any driver: packets that came from the wire, and counters of those that came damaged; None where
        it has none of them that are known.
    """

    name: str
    address: str | None
    driver: str | None
    firmware: str | None
    state: str | None
    bond: str | None
    bits_per_s: float | None
    mtu_bytes: int | None
    carrier_downs: int | None
    pauses: str | None
    ecn: Mapping[str, tuple[int, ...]]
    counters: Mapping[str, int] | None
    num_received: int | None = None
    damaged: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Ethernet(Facts):
    """Physical Ethernet interfaces, those of RoCE among them."""

    interfaces: tuple[Interface, ...]

    @classmethod
    def read(cls, files: Files) -> Self:
        names = [name for name in files.names(FOLDER) if _is_physical(files, name)]
        asks = bool(names) and files.output(*ETHTOOL.split()) is not None
        with ThreadPoolExecutor() as threads:  # one slow interface must not keep the others
            interfaces = tuple(threads.map(lambda name: _interface(files, name, asks), names))
        return cls(interfaces=interfaces, unread=files.unread)


def _is_physical(files: Files, name: str) -> bool:
    folder = f"{FOLDER}/{name}"
    return files.exists(f"{folder}/device") and files.number(f"{folder}/type", optional=True) in (_ETHERNET, None)


def _interface(files: Files, name: str, asks: bool) -> Interface:
    folder = f"{FOLDER}/{name}"
    state = files.text(f"{folder}/operstate", optional=True)
    speed = files.number(f"{folder}/speed", optional=True) if state == "up" else None
    said = {option: files.output("ethtool", option, name) if asks else None for option in ("-i", "-a", "-S")}
    firmware = re.search(r"^firmware-version: *(\S.*)$", said["-i"] or "", re.MULTILINE)
    return Interface(
        name=name,
        address=files.link(f"{folder}/device"),
        driver=files.link(f"{folder}/device/driver"),
        firmware=firmware[1].strip() if firmware else None,
        state=state,
        bond=files.link(f"{folder}/master"),
        bits_per_s=speed * 1e6 if speed and speed > 0 else None,
        mtu_bytes=files.number(f"{folder}/mtu", optional=True),
        carrier_downs=files.number(f"{folder}/carrier_down_count", optional=True),
        pauses=pauses(said["-a"] or ""),
        ecn=_ecn(files, f"{folder}/ecn"),
        counters=None if said["-S"] is None else counters(said["-S"]),
        **_received(said["-S"] or ""),
    )


def _received(printed: str) -> _Received:
    (told,) = ethtool_stats.parse(printed) or (None,)
    if told is None:
        return {"num_received": None, "damaged": None}
    damaged = {name: told.counters[name] for name in ethtool_stats.DAMAGED if name in told.counters}
    return {"num_received": told.num_received, "damaged": damaged or None}


def _ecn(files: Files, folder: str) -> dict[str, tuple[int, ...]]:
    found = {}
    for role in ("np", "rp"):  # notification and reaction point
        enable = f"{folder}/roce_{role}/enable"
        names = [name for name in files.names(enable) if name.isdecimal()]
        set_to = {int(name): files.number(f"{enable}/{name}", optional=True) for name in names}
        if set_to and None not in set_to.values():  # one that may not be read is no off
            found[role] = tuple(sorted(priority for priority, is_on in set_to.items() if is_on))
    return found


def pauses(printed: str) -> str | None:
    """``rx on, tx off`` of what ``ethtool -a`` prints; None where the driver does not say.

    >>> pauses("Pause parameters for eth0:\\nAutonegotiate:  off\\nRX:             on\\nTX:             off\\n")
    'rx on, tx off'
    """
    found = dict(re.findall(r"^(RX|TX):\s+(on|off)\s*$", printed, re.MULTILINE))
    return f"rx {found['RX']}, tx {found['TX']}" if len(found) == 2 else None


def counters(printed: str) -> dict[str, int]:
    """The telling ones of what ``ethtool -S`` prints.

    >>> counters("NIC statistics:\\n     rx_packets: 9\\n     rx_discards_phy: 0\\n     rx_prio3_pause: 17\\n")
    {'rx_discards_phy': 0, 'rx_prio3_pause': 17}
    """
    rows = re.findall(r"^\s+(\w+)\s*: (\d+)\s*$", printed, re.MULTILINE)
    numbers = {name: int(value) for name, value in rows}
    return {name: value for name, value in numbers.items() if name in COUNTERS or (value and _PRIORITY.fullmatch(name))}
