from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterbench.checks import Fault
from clusterbench.checks._interfaces import interface_behind
from clusterbench.checks._pauses import pauses
from clusterbench.checks._ports import PortCheck
from clusterbench.checks._retransmission import share_lost
from clusterbench.checks._training import training
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.ethernet import ETHTOOL, FOLDER, Ethernet, Interface
from clusterbench.facts.infiniband import Port

_STORM = "tx_pause_storm_error_events"
_DISCARDS = "rx_discards_phy"
_MARKED = "np_ecn_marked_roce_packets"
MOST_LOST, MOST_MARKED = 0.01, 0.01


class RoceCongestion(PortCheck):
    """Signs that a RoCE network was overloaded since the driver was loaded: pauses that had to be cut off, packets that
    found no buffer, many pauses, and many packets with a mark of congestion.

    A pause storm that reached its time limit: the card could not take what came for so long that the driver stopped
    pausing, and packets were lost. Packets without a buffer are found where sending them again costs 1 % of the
    bandwidth (as check 53 counts). More than 1 % of packets with ECN's mark is a note: DCQCN does its work, and the
    network is full. Pauses of a priority (PFC) are how a lossless network works; where there is one for ten packets of
    the direction that they stop, the port stood still about as long as it sent, and one for a hundred is a note. These
    shares are ours. ECN that is off for all priorities of a card is a note, too: then nothing but
    pauses slows a sender.

    Source: Linux kernel, ``ethernet/mellanox/mlx5/counters.rst``; NCCL user guide, RoCE.
    """

    number = 54
    question = "Is the RoCE network free of storms of pauses, lost packets and heavy congestion?"
    severity = "warning"
    source = "ethtool -S, /sys/class/net/*/ecn, /sys/class/infiniband/*/ports/*/hw_counters"
    programs = "ethtool"
    confirm = (
        "ethtool -S DEVICE | grep -E 'pause_storm|discards|prio._pause'; rdma statistic show link; "
        "grep . /sys/class/net/DEVICE/ecn/*/enable/*"
    )
    fix = "the same lossless priority (PFC), ECN marks and DSCP on hosts and switches: mlnx_qos, NCCL_IB_TC"
    parts = "active RoCE ports"
    in_order = "without storms, losses, many pauses or marks"

    def parts_of(self, host: Host) -> Sequence[Port]:
        return [port for port in training(host).ports if port.is_active and port.is_roce]

    def fault(self, host: Host, part: Port) -> Fault | None:
        name, counters = _interface(host, part)
        received = part.counters.get("port_rcv_packets", 0)
        if storms := counters.get(_STORM, 0):
            what = f"was paused too long {storms:,} times, until {name} stopped pausing: packets were lost"
            return Fault(part.name, what, f"ethtool -S {name}: {_STORM}: {storms}")
        discards = counters.get(_DISCARDS, 0)
        if (share := share_lost(discards, received)) >= MOST_LOST:
            what = f"has dropped {discards:,} packets for lack of buffers: some {share:.0%} of its bandwidth"
            return Fault(part.name, what, f"ethtool -S {name}: {_DISCARDS}: {discards}; port_rcv_packets: {received}")
        of_way = {"rx": part.counters.get("port_xmit_packets", 0), "tx": received}
        for told in pauses(counters):
            if said := told.judged(of_way[told.way]):
                severity, what = said
                return Fault(part.name, what, f"ethtool -S {name}: {told.counter}: {told.count}", severity=severity)
        marked = part.hw_counters.get(_MARKED, 0)
        if received and marked / received > MOST_MARKED:
            what = f"has received {marked / received:.1%} of its packets with a mark of congestion"
            evidence = f"{part.path}/hw_counters/{_MARKED}: {marked}; counters/port_rcv_packets: {received}"
            return Fault(part.name, what, evidence, severity="note")
        return _without_ecn(part, interface_behind(host, part))


def _without_ecn(port: Port, interface: Interface) -> Fault | None:
    off = [role for role, priorities in interface.ecn.items() if not priorities]
    if not off:
        return None
    what = {"np": "tells no sender of marks of congestion", "rp": "does not slow down when it is told of congestion"}
    evidence = "; ".join(f"{FOLDER}/{interface.name}/ecn/roce_{role}/enable: 0 for all priorities" for role in off)
    return Fault(port.name, " and ".join(what[role] for role in off), evidence, severity="note")


def _interface(host: Host, port: Port) -> tuple[str, Mapping[str, int]]:
    """The interface behind a port, with its counters.

    Raises
    ------
    NotKnown
        If it has none of them, or they were not read.
    """
    unread, interface = host.of(Ethernet).unread, interface_behind(host, port)
    source = f"ethtool -S {interface.name}"
    if interface.counters is None:
        source = ETHTOOL if ETHTOOL in unread else source
        raise NotKnown(f"{source}: {unread.get(source, 'says nothing')}", "the program ethtool")
    if not {_STORM, _DISCARDS} & interface.counters.keys():
        raise NotKnown(f"{source} has neither {_STORM} nor {_DISCARDS}", "another driver")
    return interface.name, interface.counters
