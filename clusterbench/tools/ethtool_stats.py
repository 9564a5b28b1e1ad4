"""``ethtool -S``: a driver's own counters of a network interface.

Each driver has its own names. Source of mlx5's and ENA's: Linux kernel, ``networking/device_drivers/ethernet``,
``mellanox/mlx5/counters.rst`` and ``amazon/ena.rst``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_HEADER = "NIC statistics:"
_COMMAND = re.compile(r"ethtool\s+(?:-S|--statistics)\s+(?P<name>[\w.@-]+)")
_RECEIVED = (
    "rx_packets_phy",
    "rx_packets.nic",
    "port.rx_packets",
    "port_rx_packets",
    "rx_packets",
    "rx_pkts",
    "frames_rx_ok",
)
_KIND = re.compile(r"rx_(?:[umb]cast_(?:packets|frames)|unicast|multicast|broadcast)")
_COUNTER = re.compile(r"(?:(?P<queue>\[\d+\]|[rt]xq\d+): )?(?P<name>[\w.\-]+): (?P<value>\d+)")


DAMAGED = (
    "rx_crc_errors_phy",
    "rx_pcs_symbol_err_phy",
    "rx_crc_errors",
    "rx_crc_errors.nic",
    "port.rx_crc_errors",
    "rx_fcs_errors",
    "rx_fcs_err_frames",
    "rx_align_errors",
    "rx_alignment_symbol_errors",
    "frames_rx_bad_fcs",
    "port_rx_bad",
)
"""Of the wire: cable, transceiver, fibre. Sums that IP and TCP check are none of them."""
LINK_DOWN = ("link_down_events_phy", "link_down_events")

MOST_DAMAGED = 1e-7
"""Of the packets: IEEE 802.3 allows a bit in 1e12, which is 7e-8 of packets of 9,000 bytes."""
FEWEST_DAMAGED = 10
MOST_DOWN = 10
"""Times that a link went down: the limit of rdma-core for ports of InfiniBand."""


@dataclass(frozen=True)
class Interface:
    """``name`` is empty where no command line says it; counters of queues are summed over them."""

    name: str
    counters: Mapping[str, int]
    lines: Mapping[str, str]

    @property
    def num_received(self) -> int | None:
        """Packets that came from the wire; None where no counter that is known says it."""
        for name in _RECEIVED:
            if name in self.counters:
                return self.counters[name]
        queues = [count for name, count in self.counters.items() if re.fullmatch(r"queue_\d+_rx_cnt", name)]
        kinds = [count for name, count in self.counters.items() if _KIND.fullmatch(name)]
        return sum(queues) if queues else sum(kinds) if kinds else None


def is_statistics(text: str) -> bool:
    return any(line.strip() == _HEADER for line in text.splitlines())


def parse(text: str) -> tuple[Interface, ...]:
    """Each interface, in the order of the text."""
    return tuple(_interfaces(text))


def _interfaces(text: str) -> Iterator[Interface]:
    name = following = ""
    counters: dict[str, int] | None = None
    lines: dict[str, str] = {}
    for line in map(str.strip, text.splitlines()):
        if line == _HEADER:
            if counters is not None:
                yield Interface(name, counters, lines)
            name, following = following, ""
            counters, lines = {}, {}
        elif command := _COMMAND.search(line):
            following = command["name"]
        elif counters is not None and (said := _COUNTER.fullmatch(line)):
            counters[said["name"]] = counters.get(said["name"], 0) + int(said["value"])
            if int(said["value"]):
                lines.setdefault(said["name"], line)
    if counters is not None:
        yield Interface(name, counters, lines)
