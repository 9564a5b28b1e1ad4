"""``ethtool -S``: packets that arrived damaged or found no buffer, links that were lost, and pauses."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks._pauses import Pauses, pauses
from clusterbench.checks._retransmission import share_lost
from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import ethtool_stats
from clusterbench.tools.ethtool_stats import DAMAGED, FEWEST_DAMAGED, LINK_DOWN, MOST_DAMAGED, MOST_DOWN, Interface
from clusterbench.types import Severity

_NAME = "ethernet_errors"
_NO_BUFFER = ("rx_discards_phy", "rx_missed_errors", "rx_missed_errors.nic", "rx_discards", "rx_stat_discard")
_OF_KERNEL = "rx_out_of_buffer"
"""Of queues of the kernel's network alone, whose packets ``rx_packets`` counts: RDMA has its own buffers."""
_MODULE = ("module_bus_stuck", "module_high_temp", "module_bad_shorted")
_STORM = "tx_pause_storm_error_events"
_ALLOWANCE = "_allowance_exceeded"

MOST_WITHOUT_BUFFER, SOME_WITHOUT_BUFFER = 0.01, 1e-4
"""Shares of the packets; of RoCE, where each costs what is in flight, a share of its bandwidth."""

_CONFIRM = "ethtool -S {} | grep -E 'crc|symbol|link_down|discard|missed'; ethtool -m {}"
_CABLE = "clean, reseat or replace cable and transceiver, at both ends; look at the counters of the switch's port"


class EthtoolStatistics(HostText):
    """Counters since the driver was loaded; of a driver whose counters of damaged packets are not known, not judged.

    Whether they still grow takes a second reading.
    """

    kind = "ethtool -S"

    def holds(self, text: str) -> bool:
        return ethtool_stats.is_statistics(text)

    def read(self, text: str, name: str) -> Said:
        interfaces = ethtool_stats.parse(text)
        found = tuple(each for interface in interfaces for each in _found(interface, name))
        healthy, unknown = [], []
        for interface in interfaces:
            unknown += [
                NotJudged(_NAME, (name,), why, "ethtool -S, whole")
                for told in pauses(interface.counters)
                if _stopped(interface, told) is None
                for why in [f"{told.counter} counts {told.count:,} pauses, and nothing says of how many packets"]
            ]
            known = [counter for counter in DAMAGED if counter in interface.counters]
            place = interface.name or "the interface"
            if not known:
                why = f"no counter of damaged packets of {place} is known: another driver, or the text is cut"
                unknown.append(NotJudged(_NAME, (name,), why, "ethtool -S, whole; the counters of the switch's port"))
            elif not interface.num_received:
                why = f"{place} has received nothing, or does not say how much"
                unknown.append(NotJudged(_NAME, (name,), why, "ethtool -S after traffic"))
            elif not any(interface.counters[counter] for counter in known):
                what = f"{place}: {interface.num_received:,} packets received, none damaged"
                healthy.append(Healthy(_NAME, (name,), what))
        return Said(found=found, healthy=tuple(healthy), not_judged=tuple(unknown), hosts=(name,))


def _stopped(interface: Interface, told: Pauses) -> int | None:
    """Packets of the direction that pauses stop, RDMA's among them; None where the text does not say them."""
    way = {"rx": "tx", "tx": "rx"}[told.way]
    counters = (f"{way}_prio{told.priority}_packets", f"{way}_packets_phy")
    return next((interface.counters[counter] for counter in counters if counter in interface.counters), None)


def _found(interface: Interface, name: str) -> Iterator[Found]:
    received = interface.num_received or 0

    def make(severity: Severity, what: str, counter: str, fix: str) -> Found:
        evidence, device = f"{name}: {interface.lines[counter]}", interface.name or "NIC"
        return Found(_NAME, severity, (name,), interface.name, what, evidence, _CONFIRM.format(device, device), fix)

    counted = {counter: count for counter, count in interface.counters.items() if count}
    for counter in filter(counted.__contains__, DAMAGED):
        count = counted[counter]
        many = count > FEWEST_DAMAGED and count > MOST_DAMAGED * received > 0
        share = f", {count / received:.1e} of those that it received" if received else ""
        yield make("warning" if many else "note", f"{count:,} damaged packets ({counter}){share}", counter, _CABLE)
    for counter in filter(counted.__contains__, LINK_DOWN):
        if (count := counted[counter]) > 1:  # the first is how it came up
            what = f"its link went down {count:,} times"
            yield make("warning" if count > MOST_DOWN else "note", what, counter, _CABLE)
    for counter in filter(counted.__contains__, (*_NO_BUFFER, _OF_KERNEL)):
        count = counted[counter]
        among = interface.counters.get("rx_packets", received) if counter == _OF_KERNEL else received
        share_of = share_lost(count, among) if counter == _NO_BUFFER[0] else count / among if among else 0.0
        if share_of >= SOME_WITHOUT_BUFFER:
            what = f"{count:,} packets found no receive buffer ({counter}), of {among:,}"
            fix = "of RoCE: lossless priority (PFC) and ECN on hosts and switches; else larger rings (ethtool -G)"
            yield make("warning" if share_of >= MOST_WITHOUT_BUFFER else "note", what, counter, fix)
    for told in pauses(interface.counters):
        if said := told.judged(_stopped(interface, told) or 0):
            fix = (
                "ECN of one DSCP on hosts and switches; what the port that asks for pauses is too slow in: PCIe, memory"
            )
            yield make(*said, told.counter, fix)
    for counter in filter(counted.__contains__, _MODULE):
        what = f"its module reported {counter.removeprefix('module_').replace('_', ' ')} {counted[counter]:,} times"
        yield make("warning", what, counter, "cool, reseat or replace the transceiver")
    if _STORM in counted:
        what = f"was paused too long {counted[_STORM]:,} times, until it stopped pausing: packets were lost"
        fix = "the same lossless priority (PFC) on hosts and switches; look for what this host was too slow in"
        yield make("warning", what, _STORM, fix)
    for counter in (counter for counter in counted if counter.endswith(_ALLOWANCE)):
        what = f"the cloud's limit of this instance held back {counted[counter]:,} packets ({counter})"
        yield make(
            "note", what, counter, "a larger instance, or less traffic over this interface: no fault of the link"
        )
