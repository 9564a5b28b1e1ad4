from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._ports import PortCheck
from clusterbench.checks._retransmission import share_lost
from clusterbench.checks._training import active_verbs_ports
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Port

_LOST = ("packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err")
_STALLED = ("local_ack_timeout_err", "rnr_nak_retry_err", "req_transport_retries_exceeded")
_WARNING, _ERROR = 0.01, 0.1


class RdmaRetransmission(PortCheck):
    """Packets that training ports had to send again, as a share of all they sent since the driver was loaded.

    For each the sender goes back and repeats what is in flight, some 122 packets: a share of bandwidth that is an error
    from a tenth on and a warning from a hundredth on. Timeouts are a note: each stalls a connection for seconds, and
    jobs that were killed leave some too. ``out_of_sequence`` is left out, as adaptive routing makes it grow.

    Source: NVIDIA, *Understanding mlx5 Linux counters*; NCCL user guide, networking troubleshooting; the share is ours.
    """

    number = 53
    question = "Do training ports send hardly anything again?"
    severity = "error"
    source = "/sys/class/infiniband/*/ports/*/hw_counters"
    confirm = "rdma statistic show link"
    fix = "RoCE: make the fabric lossless (PFC, ECN) or leave congested paths; InfiniBand: look for links with errors"
    parts = "active training ports"
    in_order = "that sent less than 1 % again"

    def parts_of(self, host: Host) -> Sequence[Port]:
        return active_verbs_ports(host)

    def fault(self, host: Host, part: Port) -> Fault | None:
        lost = {name: part.hw_counters[name] for name in _LOST if name in part.hw_counters}
        sent = part.counters.get("port_xmit_packets")
        if not lost or sent is None:
            missing = "counters/port_xmit_packets" if lost else "hw_counters"
            raise NotKnown(f"{part.path}/{missing} is not there", "a host that shows it: no virtual function")
        share = share_lost(sum(lost.values()), sent)
        if share >= _WARNING:
            what = f"has lost some {share:.0%} of its bandwidth to packets that were sent again: {_counted(lost)}"
            evidence = f"{part.path}/hw_counters: {_counted(lost)}; counters/port_xmit_packets: {sent}"
            return Fault(part.name, what, evidence, severity="error" if share >= _ERROR else "warning")
        stalled = {name: count for name in _STALLED if (count := part.hw_counters.get(name, 0))}
        if stalled:
            what = f"has counted {_counted(stalled)}: connections that stood still, or jobs that were killed"
            return Fault(part.name, what, f"{part.path}/hw_counters: {_counted(stalled)}", severity="note")
        return None


def _counted(counters: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counters.items() if count)
