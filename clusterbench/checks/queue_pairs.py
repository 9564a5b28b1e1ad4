from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.nccl_conf import effective

VARIABLE = "NCCL_IB_QPS_PER_CONNECTION"


class QueuePairs(HostCheck):
    """One queue pair for each connection on RoCE, so that a switch sends all of it one way.

    Switches that hash flows over several paths (ECMP) need several flows; NCCL's user guide advises more queue pairs
    there (performance and tuning). On a network with one path, or with adaptive routing, one is right: a note.
    """

    number = 58
    question = "Has a RoCE connection several queue pairs, for networks of several paths?"
    severity = "note"
    source = f"{VARIABLE} in the environment and nccl.conf, /sys/class/infiniband/*/ports/*/link_layer"
    confirm = f"env | grep {VARIABLE}"
    fix = f"try {VARIABLE}=4 where the network has several paths, and keep what all_reduce shows to be faster"

    def judge(self, host: Host) -> Judged:
        ports = [port for port in host.of(Infiniband).ports if port.is_roce and port.is_active]
        if not ports:
            return Judged(not_applicable="no active RoCE port here")
        setting = effective(host).get(VARIABLE)
        value = setting.value.strip() if setting else ""
        if value.isascii() and value.isdecimal() and int(value) > 1:
            return Judged(healthy=f"{VARIABLE}={value}")
        said = f"{setting.said_by}: {VARIABLE}={value}" if setting else f"{VARIABLE} is not set"
        what = "each RoCE connection has one queue pair, and takes one of the network's paths"
        return Judged((Fault("", what, said),))
