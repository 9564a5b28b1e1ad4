from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.facts import Host, known
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.limits import PATH, UNLIMITED, Limits

LEAST_BYTES = 32 * 2**30


class Memlock(HostCheck):
    """Locked memory: RDMA registers every buffer, and registering fails above the limit.

    NVIDIA's NCCL user guide asks for no limit; AMD's Primus refuses a node below 32 GiB, which is the limit here.
    """

    number = 62
    question = "May a process lock as much memory as RDMA registers?"
    severity = "error"
    source = PATH
    confirm = "ulimit -l"
    fix = (
        "'* - memlock unlimited' in /etc/security/limits.d, LimitMEMLOCK=infinity for slurmd or the container runtime, "
        "--ulimit memlock=-1 for docker"
    )

    def judge(self, host: Host) -> Judged:
        if not host.of(Infiniband).devices:
            return Judged(not_applicable="no RDMA device here")
        memlock = known((limits := host.of(Limits)), limits.memlock_bytes, PATH)
        if memlock == UNLIMITED or memlock >= LEAST_BYTES:
            size = "no limit" if memlock == UNLIMITED else f"{memlock / 2**30:.0f} GiB"
            return Judged(healthy=f"locked memory: {size}")
        size = f"{memlock / 2**20:.0f} MiB" if memlock >= 2**20 else f"{memlock / 2**10:g} KiB"
        return Judged(
            (Fault("", f"a process may lock {size} of memory, and RDMA needs it without limit", f"{PATH}: {size}"),)
        )
