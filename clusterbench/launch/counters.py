"""Error counters of this host, read before and after a case: what grew meanwhile, and nothing else, is told.

Only files of ``/sys`` are read, some thousand on a host with eight cards, and never while a case is timed. ``ethtool``
is not asked: it takes too long for every case, so that PFC pauses are not known.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from clusterbench.facts import Files
from clusterbench.tools.error_counters import (
    BRIDGE,
    GONE,
    GPU,
    INTERFACE,
    MEANINGS,
    NETWORK_CARD,
    PACKETS,
    PCIE,
    kind_of,
)
from clusterbench.types import HostCounters

SECONDS_OF_A_READING = 2.0
"""For the files to answer, which takes a tenth of a second; a card whose firmware hangs may never do."""

Reading = Mapping[str, Mapping[str, int]]
"""Counters since the driver was loaded, by place and name."""

_INFINIBAND, _NET, _PCI = "/sys/class/infiniband", "/sys/class/net", "/sys/bus/pci/devices"
_PACKETS = frozenset(
    ("port_xmit_packets", "port_rcv_packets", "tx_pkts", "rx_pkts", "tx_packets", "rx_packets"),
)  # of the port, of its hardware where it has no such counters (bnxt_re), of the interface
_AER = ("aer_dev_fatal", "aer_dev_nonfatal", "aer_dev_correctable")
_CLASSES = {"0x03": GPU, "0x02": NETWORK_CARD, "0x0604": BRIDGE, "0x0680": BRIDGE}
"""Kinds of PCIe devices, by the first digits of their class: PCI Code and ID Assignment Specification."""


def read_counters(files: Files) -> Reading:
    """What all counters of a host say now; one that cannot be read is left out."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    of_interface: dict[str, str] = {}
    for device in files.names(_INFINIBAND):
        ports = [number for number in files.names(f"{_INFINIBAND}/{device}/ports") if number.isdecimal()]
        for number in ports:
            for folder in ("counters", "hw_counters"):
                _add(found[f"{device} port {number}"], files, f"{_INFINIBAND}/{device}/ports/{number}/{folder}")
        if len(ports) == 1:
            names = files.names(f"{_INFINIBAND}/{device}/device/net")
            of_interface |= dict.fromkeys(names, f"{device} port {ports[0]}")
    for name in files.names(_NET):
        if not files.exists(f"{_NET}/{name}/device"):
            continue  # bridges, tunnels and containers' ends: what they carry, a card carries
        place = of_interface.get(name, f"{INTERFACE} {name}")
        _add(found[place], files, f"{_NET}/{name}/statistics")
        _add(found[place], files, f"{_NET}/{name}", ("carrier_changes",))
    for address in files.names(_PCI):
        if (kind := _kind(files, address)) is not None:
            found[f"{kind} {address}"] |= _uncorrected(files, f"{_PCI}/{address}")
    return {place: dict(counts) for place, counts in found.items() if counts}


def _add(counts: dict[str, int], files: Files, folder: str, names: tuple[str, ...] = ()) -> None:
    for name in names or files.names(folder):
        if name not in MEANINGS and name not in _PACKETS:
            continue
        if (value := files.number(f"{folder}/{name}", optional=True)) is not None:
            counts[PACKETS if name in _PACKETS else name] += value


def _kind(files: Files, address: str) -> str | None:
    """None for a device that does not report errors."""
    if not files.exists(f"{_PCI}/{address}/aer_dev_fatal"):
        return None
    code = files.text(f"{_PCI}/{address}/class", optional=True) or ""
    return next((kind for begins, kind in _CLASSES.items() if code.startswith(begins)), PCIE)


def _uncorrected(files: Files, folder: str) -> dict[str, int]:
    """The sum of each file of errors: ``TOTAL_ERR_FATAL 0`` is its last line."""
    counts = {}
    for name in _AER:
        last = (files.text(f"{folder}/{name}", optional=True) or "").rpartition("\n")[2].split()
        if len(last) == 2 and last[0].startswith("TOTAL_ERR_") and last[1].isdecimal():
            counts[name] = int(last[1])
    return counts


def growth(before: Reading, after: Reading, over_s: float) -> HostCounters:
    """What grew between two readings. A counter that fell was reset meanwhile, and grew by what it has since.

    >>> growth({"mlx5_0 port 1": {"symbol_error": 3}}, {"mlx5_0 port 1": {"symbol_error": 5}}, 2.0).grown
    {'mlx5_0 port 1': {'symbol_error': 2}}
    """
    read: dict[str, int] = defaultdict(int)
    grown = {place: {GONE: 1} for place in before if place not in after}
    for place, counts in after.items():
        if place not in before:
            continue
        read[kind_of(place)] += 1
        both = {name: (count, before[place][name]) for name, count in counts.items() if name in before[place]}
        more = {name: now - then if now >= then else now for name, (now, then) in both.items()}
        if more := {name: count for name, count in more.items() if count}:
            grown[place] = more
    unread = "" if read or grown else "this host shows no counters of ports, interfaces or PCIe devices"
    return HostCounters(round(over_s, 3), dict(read), grown, unread)


@dataclass
class HostCounterReader:
    """Reads the counters of this host before and after a case, and waits for no file that does not answer."""

    root: Path = Path("/")
    _before: Reading | None = None
    _began_s: float = 0.0
    _thread: Thread | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether a case began, and what grew since has not been told."""
        return self._began_s > 0.0

    def begin(self) -> None:
        self._began_s, self._before = time.monotonic(), self._read()

    def end(self) -> HostCounters:
        """What grew since :meth:`begin`."""
        over_s, self._began_s = time.monotonic() - self._began_s, 0.0
        after = None if self._before is None else self._read()
        if self._before is None or after is None:
            return HostCounters(round(over_s, 3), unread=f"files of /sys did not answer in {SECONDS_OF_A_READING:g} s")
        return growth(self._before, after, over_s)

    def _read(self) -> Reading | None:
        """None where the files do not answer in time, or have not answered the last time yet."""
        if self._thread is not None and self._thread.is_alive():
            return None
        answer: list[Reading] = []
        self._thread = Thread(
            target=lambda: answer.append(read_counters(Files(self.root))), name="counters", daemon=True
        )
        self._thread.start()
        self._thread.join(SECONDS_OF_A_READING)
        return answer[0] if answer else None
