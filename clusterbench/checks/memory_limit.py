from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import num_gpus
from clusterbench.facts import Host, known
from clusterbench.facts.cgroup import PATH, Cgroup
from clusterbench.words import plural

LEAST_FOR_EACH_GPU_BYTES = 16 * 2**30


class MemoryLimit(HostCheck):
    """The memory that a job's control group allows, and processes that the kernel killed at that limit.

    A rank's process, the workers of its data loader, pinned buffers and a checkpoint on its way to the disk live in
    the host's memory. Below 16 GiB for each GPU (our bound) it is a warning, and so is a process that was killed since
    the group was made: the next one may be a rank.
    """

    number = 138
    question = "May a job have as much memory as its ranks need, and was none of its processes killed for it?"
    severity = "warning"
    source = "memory.max and memory.events of the control group"
    confirm = "cat /proc/self/cgroup; grep . /sys/fs/cgroup/*/memory.max /sys/fs/cgroup/*/memory.events"
    fix = "srun --mem=0 or --mem-per-gpu; docker: a larger --memory; Kubernetes: resources.limits.memory"

    def judge(self, host: Host) -> Judged:
        if not (gpus := num_gpus(host)):
            return Judged(not_applicable="no GPU here")
        cgroup = host.of(Cgroup)
        path = known(cgroup, cgroup.path, PATH)
        faults, limit = tuple(_faults(cgroup, path, gpus)), cgroup.memory_limit_bytes
        return Judged(faults, "" if faults else f"memory: {_gib(limit) if limit is not None else 'no limit'}")


def _faults(cgroup: Cgroup, path: str, gpus: int) -> Iterator[Fault]:
    limit = cgroup.memory_limit_bytes
    if limit is not None and limit < LEAST_FOR_EACH_GPU_BYTES * gpus:
        what = f"a job may have {_gib(limit)} of memory, and ranks of {plural(gpus, 'GPU')} need more"
        yield Fault("", what, f"{PATH}: {path}, memory limit {limit} bytes")
    if cgroup.oom_kills:
        what = f"the kernel killed {plural(cgroup.oom_kills, 'process', 'processes')} of this control group for memory"
        yield Fault("", what, f"{PATH}: {path}, oom_kill {cgroup.oom_kills}")


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.0f} GiB"
