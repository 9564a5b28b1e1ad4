from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event

MANY = 100
"""Corrected errors within a day. No source gives a figure: some are normal, and each costs a transfer sent again."""


class PcieErrors(KernelLogCheck):
    """Errors that PCIe devices report (AER), slots that lost their card, and accesses that the IOMMU refused.

    What was not corrected is an error, corrected ones are a warning from a hundred a day, a note below: the kernel logs
    a few of many. A slot whose link went down, and a device that reached for memory that is not its own, are a warning:
    a disk may have been pulled on purpose, and some firmware does the second while the host starts.

    Source: Linux, ``drivers/pci/pcie/aer.c``, ``drivers/pci/hotplug/pciehp_ctrl.c``, ``drivers/iommu``.
    """

    number = 114
    question = "Is PCIe free of errors?"
    severity = "error"
    confirm = "dmesg -T | grep -E 'AER|PCIe Bus Error|pciehp|DMAR|AMD-Vi'; lspci -vvv | grep -E 'UESta|CESta'"
    fix = "reseat the card; look at riser and cable; update the BIOS; a device that is always the same: replace it"
    kinds = ("aer", "aer_corrected", "slot_link", "iommu")
    absent = "PCIe error"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if "device inaccessible" in event.text:
            return told(host, event, "does not answer on PCIe")
        if event.kind == "slot_link":
            return replace(told(host, event, "lost the card in its slot"), severity="warning")
        if event.kind == "iommu":
            return replace(told(host, event, "was refused an access to memory by the IOMMU"), severity="warning")
        if event.kind == "aer":
            return told(host, event, "reported a PCIe error that was not corrected")
        fault = told(host, event, "reported PCIe errors that were corrected")
        return replace(fault, severity="warning" if event.count >= MANY else "note")
