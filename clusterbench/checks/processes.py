from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import num_gpus
from clusterbench.facts import Host, known
from clusterbench.facts.cgroup import PATH as CGROUP
from clusterbench.facts.cgroup import Cgroup
from clusterbench.facts.kernel import Kernel
from clusterbench.facts.limits import PATH, UNLIMITED, Limits
from clusterbench.words import plural

LEAST_FOR_EACH_GPU = 1024
PID_MAX = "/proc/sys/kernel/pid_max"


class Processes(HostCheck):
    """How many processes and threads a job may have: a thread counts as a process.

    A rank has hundreds: NCCL's, CUDA's, OpenMP's, autograd's and those of its data loaders. Beyond the bound the next
    ends in "Resource temporarily unavailable". Kubernetes bounds a pod where told so (podPidsLimit), some systems a
    user to 4,096. Below 1,024 for each GPU (our bound) it is a warning.
    """

    number = 131
    question = "May a job have as many threads as its ranks need?"
    severity = "warning"
    source = f"{PATH}, pids.max of the control group, {PID_MAX}"
    confirm = f"ulimit -u; cat /sys/fs/cgroup/pids.max {PID_MAX}"
    fix = "'* - nproc unlimited' in /etc/security/limits.d; podPidsLimit of the kubelet; --pids-limit -1 for docker"

    def judge(self, host: Host) -> Judged:
        if not (gpus := num_gpus(host)):
            return Judged(not_applicable="no GPU here")
        bounds = dict(_bounds(host))
        source, least = min(bounds.items(), key=lambda item: item[1], default=("", None))
        if least is None:
            return Judged(healthy="processes and threads: no limit")
        if least >= LEAST_FOR_EACH_GPU * gpus:
            return Judged(healthy=f"processes and threads: {least:,}")
        what = f"a job may have {least:,} processes and threads, and ranks of {plural(gpus, 'GPU')} need more"
        return Judged((Fault("", what, f"{source}: {least}"),))


def _bounds(host: Host) -> Iterator[tuple[str, int]]:
    limits, cgroup, kernel = host.of(Limits), host.of(Cgroup), host.of(Kernel)
    if (own := known(limits, limits.processes, PATH)) != UNLIMITED:
        yield f"{PATH}: Max processes", own
    if cgroup.processes_limit is not None:
        yield f"{CGROUP}: pids.max of {cgroup.path}", cgroup.processes_limit
    if kernel.processes_limit is not None:
        yield PID_MAX, kernel.processes_limit
