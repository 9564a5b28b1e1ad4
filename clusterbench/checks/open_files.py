from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, has_rdma, trains
from clusterbench.facts import Host, known
from clusterbench.facts.limits import PATH, UNLIMITED, Limits

LEAST = 131_072
OF_ONE_NODE = 8_192


class OpenFiles(HostCheck):
    """Open files of a process: each connection of NCCL and of the control plane is one.

    NCCL's user guide speaks of more than 32,768 in one process at 144 ranks; the limit here is four times that. A host
    without an RDMA device is held against what that is for the GPUs of one node.
    """

    number = 63
    question = "May a process open as many files as connections at scale need?"
    severity = "warning"
    source = PATH
    confirm = "ulimit -n"
    fix = "'* - nofile 1048576' in /etc/security/limits.d, LimitNOFILE=1048576 for slurmd or the container runtime"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        number = known((limits := host.of(Limits)), limits.open_files, PATH)
        least, who = (LEAST, "large jobs need") if has_rdma(host) else (OF_ONE_NODE, "jobs of one node may need")
        if number == UNLIMITED or number >= least:
            return Judged(healthy=f"open files: {'no limit' if number == UNLIMITED else f'{number:,}'}")
        what = f"a process may open {number:,} files, and {who} {least:,}"
        return Judged((Fault("", what, f"{PATH}: Max open files {number}"),))
