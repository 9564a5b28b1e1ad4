from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import NO_TRAINING_NODE, trains
from clusterbench.facts import Host, known
from clusterbench.facts.limits import PATH, UNLIMITED, Limits

LEAST_BYTES = 8 * 2**20


class StackSize(HostCheck):
    """The stack of threads: NCCL's search for paths is recursive, and takes less than 8 MiB for unsafe.

    Without limit glibc gives threads 2 MiB (NCCL, ``src/init.cc``: "Stack size limit (unlimited) is unsafe").
    """

    number = 64
    question = "Do threads get a stack of 8 MiB, as NCCL asks for?"
    severity = "warning"
    source = PATH
    confirm = "ulimit -s"
    fix = "'ulimit -s 8192' before the job; no 'stack unlimited' in /etc/security/limits.d or LimitSTACK=infinity"

    def judge(self, host: Host) -> Judged:
        if not trains(host):
            return Judged(not_applicable=NO_TRAINING_NODE)
        size = known((limits := host.of(Limits)), limits.stack_bytes, PATH)
        if size >= LEAST_BYTES:
            return Judged(healthy=f"stack: {size / 2**20:.0f} MiB")
        if size == UNLIMITED:
            what, said = "the stack has no limit, for which glibc gives threads 2 MiB; NCCL needs 8 MiB", "unlimited"
        else:
            what, said = f"the stack is limited to {size / 2**20:.3g} MiB; NCCL needs 8 MiB", f"{size}"
        return Judged((Fault("", what, f"{PATH}: Max stack size {said}"),))
