from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, known
from clusterbench.facts.network_ports import RANGE, SOCKETS, NetworkPorts

LEAST = 16_384
MOST_TAKEN = 0.5


class EphemeralPorts(HostCheck):
    """Ports for connections: NCCL's bootstrap, its sockets and the stores of torch take one each.

    The kernel's default is 28,232 (32768 to 60999). A range of less than 16,384, or one of which TCP sockets hold more
    than half, may end in "Address already in use" (both bounds are ours; NCCL's user guide and AMD's Primus name the
    setting).
    """

    number = 74
    question = "Are there enough ports for the connections of a large job?"
    severity = "warning"
    source = f"{RANGE}, {SOCKETS}"
    confirm = "sysctl net.ipv4.ip_local_port_range; ss -s"
    fix = "sysctl -w net.ipv4.ip_local_port_range='32768 60999' or wider; look for who holds sockets (ss -tanp)"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        facts = host.of(NetworkPorts)
        first, last = known(facts, facts.first, RANGE), known(facts, facts.last, RANGE)
        number, bounds = last - first + 1, f"{RANGE}: {first} {last}"
        if number < LEAST:
            return Judged((Fault("", f"there are {number:,} ports for connections, and large jobs need more", bounds),))
        taken = known(facts, facts.tcp_in_use, SOCKETS) + known(facts, facts.tcp_waiting, SOCKETS)
        if taken > MOST_TAKEN * number:
            what = f"TCP sockets hold {taken:,} of {number:,} ports"
            said = f"{SOCKETS}: TCP: inuse {facts.tcp_in_use}, tw {facts.tcp_waiting}; {bounds}"
            return Judged((Fault("", what, said),))
        return Judged(healthy=f"{number:,} ports for connections, {taken:,} TCP sockets")
