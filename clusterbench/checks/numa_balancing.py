from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, known
from clusterbench.facts.memory_settings import BALANCING, MemorySettings


class NumaBalancing(HostCheck):
    """Automatic NUMA balancing: the kernel unmaps pages to see who uses them, and moves them between nodes.

    Ranks are bound to the node of their GPU and gain nothing; the page faults delay the thread that feeds the GPU. Off
    is what AMD's system tuning guides ask for and what NVIDIA's dgxc-benchmarking records (``system_info``).
    """

    number = 69
    question = "Is automatic NUMA balancing off?"
    severity = "warning"
    source = BALANCING
    confirm = "sysctl kernel.numa_balancing"
    fix = "sysctl -w kernel.numa_balancing=0, and a file in /etc/sysctl.d"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        value = known((facts := host.of(MemorySettings)), facts.numa_balancing, BALANCING)
        if value == 0:
            return Judged(healthy="NUMA balancing is off")
        what = "automatic NUMA balancing is on, which moves pages of ranks that are bound to their node"
        return Judged((Fault("", what, f"{BALANCING}: {value}"),))
