from __future__ import annotations

from collections.abc import Iterator

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import num_gpus
from clusterbench.facts import Host, known
from clusterbench.facts.cgroup import PATH, Cgroup
from clusterbench.facts.processor import FOLDER, STATUS, Processor
from clusterbench.host_facts import cpus
from clusterbench.words import plural

LEAST = 4


class CpusPerGpu(HostCheck):
    """CPUs for each GPU: a rank has threads for launching, for the network and for autograd.

    With one CPU for all of them collectives were up to 30 times slower (nccl-tests issue 297); AMD's Primus asks for
    several per rank in its preflight. Below 4 for each GPU is an error. What counts is the job's control group, its
    cpuset and quota, since a launcher rightly binds each rank to a part; but less than 4 for the one process is an
    error as well: Open MPI binds to a single core unless told otherwise.
    """

    number = 67
    question = "Are there four CPUs or more for each GPU?"
    severity = "error"
    source = f"{STATUS}, {FOLDER}/online, cpuset and quota of the control group"
    confirm = "taskset -pc $$; cat /proc/self/cgroup; nproc"
    fix = "srun --cpus-per-task or --cpu-bind=none, mpirun --bind-to none or numa; docker: no --cpus; a larger quota"

    def judge(self, host: Host) -> Judged:
        gpus = num_gpus(host)
        if not gpus:
            return Judged(not_applicable="no GPU here")
        processor, cgroup = host.of(Processor), host.of(Cgroup)
        usable = known(processor, processor.usable, STATUS)
        online = known(processor, processor.online, f"{FOLDER}/online")
        allowed = len(cpus(cgroup.cpus or online))
        faults = (*_bound(len(cpus(usable)), usable), *_of_job(cgroup, allowed, gpus))
        return Judged(faults, "" if faults else f"{plural(allowed, 'CPU')} for {plural(gpus, 'GPU')}")


def _bound(number: int, usable: str) -> Iterator[Fault]:
    if number < LEAST:
        what = f"the process that was started here may use {plural(number, 'CPU')}, and a rank needs {LEAST}"
        yield Fault("", what, f"{STATUS}: Cpus_allowed_list {usable}")


def _of_job(cgroup: Cgroup, allowed: int, gpus: int) -> Iterator[Fault]:
    if allowed < LEAST * gpus:
        what = f"the job has {plural(allowed, 'CPU')} for {plural(gpus, 'GPU')}, and each needs {LEAST}"
        yield Fault("", what, f"cpuset of {cgroup.path or 'the host'}: {cgroup.cpus or 'all CPUs'}")
    elif cgroup.cpu_quota is not None and cgroup.cpu_quota < LEAST * gpus:
        stopped = f"; stopped {cgroup.num_throttled:,} times" if cgroup.num_throttled else ""
        what = f"the job's quota is {cgroup.cpu_quota:g} CPUs for {plural(gpus, 'GPU')}, and each needs {LEAST}"
        yield Fault("", what, f"{PATH}: {cgroup.path}, cpu quota {cgroup.cpu_quota:g}{stopped}")
