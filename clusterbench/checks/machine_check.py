from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event

MANY = 10
"""Corrected memory errors logged within a day. No source gives a figure; the kernel logs a few of many."""


class MachineCheck(KernelLogCheck):
    """Errors that processor and memory report (machine checks, EDAC): an error where they were not corrected.

    Corrected ones are a warning from ten a day, a note below.
    """

    number = 112
    question = "Do processor and memory report no errors?"
    severity = "error"
    confirm = "dmesg -T | grep -iE 'hardware error|EDAC'; ipmitool sel list"
    fix = "replace the memory module that the line names; ipmitool sel list"
    kinds = ("machine_check", "memory_corrected")
    absent = "machine check"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if event.kind == "machine_check":
            return told(host, event, "processor or memory reported an error that was not corrected")
        fault = told(host, event, "memory errors were corrected")
        return replace(fault, severity="warning" if event.count >= MANY else "note")
