"""Counters of ports, network interfaces, PCIe devices and GPUs that say that something went wrong: what each means.

Which of them void a figure, at what rate the others are more than a note, and who says so. Reading them is
``launch/counters.py``; what grew stands in the record of a case (:class:`~clusterbench.types.HostCounters`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.types import HostCounters, Severity

PACKETS = "packets"
"""No error: packets that a port or an interface sent and received, by which one tells which of them a case used."""

GONE = "gone"
"""No file: stands for all counters of a place that was there before the case and is not any more."""

PORT, INTERFACE, PCIE, GPU, NETWORK_CARD, BRIDGE = "port", "interface", "PCIe device", "GPU", "network card", "bridge"
"""Kinds of places, the words with which their names begin or, of a port, go on."""

_SENTINEL = "NVSentinel, docs/nic-health-monitor/link-counter-detection.md, section 4"
_MLX5 = "NVIDIA, Understanding mlx5 Linux Counters and Status Parameters"
_KERNEL = "Linux, Documentation/ABI/testing"
_STATISTICS = f"{_KERNEL}/sysfs-class-net-statistics"
_DCGM = "DCGM, PCIe plug-in: fewer than 8 replays a minute are expected of a Gen 3 link"
_OWN = "a card that resends all that is under way, 120 packets at 400 Gb/s and 10 us, loses 1 % of its rate"

_PER_MINUTE, _PER_HOUR = 1 / 60, 1 / 3600
FEWEST_FOR_A_RATE = 10
"""Errors: of fewer, a rate says nothing, and they are a note."""


@dataclass(frozen=True)
class Meaning:
    """What it is when a counter grows.

    Attributes
    ----------
    words
        What happened, for one sentence of all counters of a place.
    severity
        Of any growth, or of growth above a rate.
    voids
        Whether a time that was taken meanwhile says nothing.
    most_per_s
        Errors a second up to which it is a note; 0 where none is allowed.
    most_per_packet
        The same, of each packet of the port.
    """

    words: str
    severity: Severity
    source: str
    voids: bool = False
    most_per_s: float = 0.0
    most_per_packet: float = 0.0


MEANINGS: Mapping[str, Meaning] = {
    # /sys/class/infiniband/*/ports/*/counters
    "link_downed": Meaning("the link went down", "error", _SENTINEL, voids=True),
    "local_link_integrity_errors": Meaning("the link has more bit errors than it may", "error", _SENTINEL),
    "excessive_buffer_overrun_errors": Meaning("receive buffers overran", "error", _SENTINEL),
    "symbol_error": Meaning("symbol errors", "warning", f"{_SENTINEL}: IBTA, 120 an hour", most_per_s=120 * _PER_HOUR),
    "link_error_recovery": Meaning("the link trained again", "warning", _SENTINEL, most_per_s=5 * _PER_MINUTE),
    "port_rcv_errors": Meaning("packets arrived damaged", "warning", _SENTINEL, most_per_s=10.0),
    "port_rcv_remote_physical_errors": Meaning("packets arrived that were marked as damaged", "note", _MLX5),
    "port_xmit_discards": Meaning("packets were dropped before they were sent", "warning", _SENTINEL, most_per_s=100.0),
    # .../hw_counters
    "rnr_nak_retry_err": Meaning("a receiver was not ready to the last retry", "error", _SENTINEL),
    "req_transport_retries_exceeded": Meaning("retries were used up", "error", _SENTINEL),
    "local_ack_timeout_err": Meaning("acknowledgements did not come in time", "warning", _SENTINEL, most_per_s=1.0),
    "out_of_sequence": Meaning("packets arrived out of order", "warning", f"{_MLX5}; {_OWN}", most_per_packet=1e-4),
    "packet_seq_err": Meaning("packets were asked for again", "warning", f"{_MLX5}; {_OWN}", most_per_packet=1e-4),
    "implied_nak_seq_err": Meaning("packets were sent again", "warning", f"{_MLX5}; {_OWN}", most_per_packet=1e-4),
    "roce_adp_retrans": Meaning("packets were sent again", "warning", f"{_MLX5}; {_OWN}", most_per_packet=1e-4),
    "rx_icrc_encapsulated": Meaning("packets arrived damaged", "warning", _MLX5, most_per_s=10.0),
    "out_of_buffer": Meaning("packets found no receive buffer", "note", _MLX5),
    "roce_slow_restart": Meaning("transfers started again slowly", "warning", _SENTINEL, most_per_s=10.0),
    "np_ecn_marked_roce_packets": Meaning("switches marked packets for congestion", "note", _MLX5),
    "np_cnp_sent": Meaning("it told senders of congestion", "note", _MLX5),
    "rp_cnp_handled": Meaning("it was told of congestion and slowed down", "note", _MLX5),
    "rp_cnp_ignored": Meaning("it was told of congestion and did not slow down", "note", _MLX5),
    # /sys/class/net/*
    "carrier_changes": Meaning("the carrier was lost or came back", "error", f"{_KERNEL}/sysfs-class-net", voids=True),
    "rx_crc_errors": Meaning("packets arrived damaged", "warning", _SENTINEL, most_per_s=10.0),
    "tx_errors": Meaning("packets could not be sent", "warning", _STATISTICS),
    "rx_missed_errors": Meaning("packets found no receive buffer", "note", _STATISTICS),
    "tx_dropped": Meaning(
        "packets were dropped before they were sent", "note", f"{_KERNEL}/sysfs-class-net-statistics"
    ),
    # /sys/bus/pci/devices/*
    "aer_dev_fatal": Meaning("fatal PCIe errors", "error", f"{_KERNEL}/sysfs-bus-pci-devices-aer", voids=True),
    "aer_dev_nonfatal": Meaning(
        "PCIe errors that were not corrected", "error", f"{_KERNEL}/sysfs-bus-pci-devices-aer", voids=True
    ),
    "aer_dev_correctable": Meaning("PCIe errors that were corrected", "warning", _DCGM, most_per_s=8 * _PER_MINUTE),
    GONE: Meaning("it is not there any more", "error", f"{_KERNEL}/sysfs-bus-pci", voids=True),
    # NVML, see engine/telemetry.py
    "ecc_uncorrected": Meaning("memory errors that were not corrected", "error", "NVML, ECC counters", voids=True),
    "ecc_corrected": Meaning("memory errors that were corrected", "note", "NVML, ECC counters"),
    "pcie_replays": Meaning("PCIe packets were sent again", "warning", _DCGM, most_per_s=8 * _PER_MINUTE),
}
"""By the name of the file; of NVML by our own. A name that is not here is neither read nor judged."""

_SHARE_OF_THE_BUSIEST = 0.01
_FEWEST_PACKETS = 10_000


def severity_of(name: str, count: int, over_s: float, packets: int) -> Severity:
    """What so much growth is worth: a note where there is a limit for it and it is not passed.

    >>> severity_of("symbol_error", 40, 60.0, 0), severity_of("symbol_error", 1, 60.0, 0)
    ('warning', 'note')
    >>> severity_of("out_of_sequence", 200, 60.0, 10**6), severity_of("out_of_sequence", 50, 60.0, 10**6)
    ('warning', 'note')
    """
    meaning = MEANINGS[name]
    most = meaning.most_per_s * over_s + meaning.most_per_packet * packets
    if not (meaning.most_per_s or meaning.most_per_packet):
        return meaning.severity
    return meaning.severity if count >= FEWEST_FOR_A_RATE and count > most else "note"


def carrying(counters: HostCounters) -> set[str]:
    """The ports and interfaces over which a case sent on this host.

    These moved at least a hundredth of what the busiest did: ports to management networks and to storage see some
    packets of theirs all the time. Where a port carried the case, no interface beside it did.
    """
    packets = {place: grown.get(PACKETS, 0) for place, grown in counters.grown.items()}
    for kind in (PORT, INTERFACE):
        of_kind = {place: count for place, count in packets.items() if kind_of(place) == kind}
        least = max(_FEWEST_PACKETS, _SHARE_OF_THE_BUSIEST * max(of_kind.values(), default=0))
        if used := {place for place, count in of_kind.items() if count >= least}:
            return used
    return set()


def kind_of(place: str) -> str:
    """Of which kind a place is.

    >>> kind_of("mlx5_3 port 1"), kind_of("interface eth0"), kind_of("network card 0000:1b:00.0")
    ('port', 'interface', 'network card')
    """
    return next((kind for kind in (INTERFACE, PCIE, GPU, NETWORK_CARD, BRIDGE) if place.startswith(f"{kind} ")), PORT)


def what_voids(counters: HostCounters) -> Iterator[tuple[str, str]]:
    """Place and words of everything for which a time that was taken meanwhile says nothing."""
    used = carrying(counters)
    for place, grown in counters.grown.items():
        words = [MEANINGS[name].words for name in grown if name in MEANINGS and MEANINGS[name].voids]
        if words and (place in used or kind_of(place) in (GPU, NETWORK_CARD, BRIDGE)):
            yield place, words[0]


def errors_of(counters: HostCounters) -> Iterator[tuple[str, str]]:
    """Place and words of every error that may be why a case did not end well, whatever carried it."""
    for place, grown in counters.grown.items():
        words = [MEANINGS[name].words for name in grown if name in MEANINGS and MEANINGS[name].severity == "error"]
        if words and kind_of(place) != PCIE:
            yield place, words[0]
