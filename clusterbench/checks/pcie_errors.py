from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event

MANY = 100
"""Corrected errors within a day. No source gives a figure: some are normal, and each costs a transfer sent again."""


class PcieErrors(KernelLogCheck):
    """Errors that PCIe devices report (AER): an error where they were not corrected.

    Corrected ones are a warning from a hundred a day, a note below. The kernel logs a few of many.

    Source: Linux, ``drivers/pci/pcie/aer.c``.
    """

    number = 114
    question = "Is PCIe free of errors?"
    severity = "error"
    confirm = "dmesg -T | grep -E 'AER|PCIe Bus Error'; lspci -vvv | grep -E 'UESta|CESta'"
    fix = "reseat the card; look at riser and cable; update the BIOS; a device that is always the same: replace it"
    kinds = ("aer", "aer_corrected")
    absent = "PCIe error"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if "device inaccessible" in event.text:
            return told(host, event, "does not answer on PCIe")
        if event.kind == "aer":
            return told(host, event, "reported a PCIe error that was not corrected")
        fault = told(host, event, "reported PCIe errors that were corrected")
        return replace(fault, severity="warning" if event.count >= MANY else "note")
