from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class StorageErrors(KernelLogCheck):
    """Disks and file systems that report errors, or servers of files that do not answer.

    Source: leptonai/gpud, ``components/disk``, ``components/nfs``.
    """

    number = 118
    question = "Do disks and file systems answer without errors?"
    severity = "warning"
    confirm = "dmesg -T | grep -iE 'I/O error|nvme|nfs|read-only'"
    fix = "look at the disk (smartctl, nvme smart-log) or at the server of the file system"
    kinds = ("storage",)
    absent = "error of storage"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "disk or file system reported an error")
