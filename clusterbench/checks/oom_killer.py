from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class OomKiller(KernelLogCheck):
    """Processes that the kernel killed because memory had run out.

    A note: the host does not tell who filled its memory, and may be well since. A rank that is killed while a case runs
    is the outcome of that case.
    """

    number = 110
    question = "Has the kernel never had to kill a process for memory?"
    severity = "note"
    confirm = "dmesg -T | grep -i 'killed process'"
    fix = "find what filled the memory (the table behind the line); fewer workers of the data loader"
    kinds = ("oom", "oom_cgroup")
    absent = "process killed for memory"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if event.kind == "oom_cgroup":
            return told(host, event, f"{event.where} was killed at the memory limit of its container or job", "")
        return told(host, event, f"{event.where} was killed because the host was out of memory", "")
