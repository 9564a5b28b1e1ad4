from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class StuckTasks(KernelLogCheck):
    """Processors that did not schedule, and tasks that waited longer than the kernel's limit (120 s unless set).

    Source: Linux, ``kernel/watchdog.c``, ``kernel/hung_task.c``.
    """

    number = 73
    question = "Do processors and tasks go on?"
    severity = "error"
    confirm = "dmesg -T | grep -iE 'lockup|blocked for more|stall'"
    fix = "look at the call trace behind the line: a file system that does not answer, a driver, a failing disk"
    kinds = ("stuck",)
    absent = "lockup or stuck task"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if "blocked" in event.text:
            return told(host, event, f"waited longer than {event.code} s in the kernel", f"task {event.where}")
        seconds = f" for {event.code} s" if event.code else ""
        return told(host, event, f"was stuck in the kernel{seconds}")
