from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class KernelPanic(KernelLogCheck):
    """The kernel itself failed: a panic, an oops, a bug that it found.

    Source: Linux, ``kernel/panic.c``, ``arch/x86/kernel/dumpstack.c``.
    """

    number = 117
    question = "Has the kernel not failed?"
    severity = "error"
    confirm = "dmesg -T | grep -iE 'panic|oops|BUG:'"
    fix = "look at the call trace behind the line; update the kernel or the driver that it names; reboot the host"
    kinds = ("panic",)
    absent = "failure of the kernel"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, f"the kernel failed: {event.text[:80]}")
