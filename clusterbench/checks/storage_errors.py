from __future__ import annotations

import re
from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event

_RECONNECTS = re.compile(r"CIFS: VFS: .* has not responded in \d+ seconds\. Reconnecting")


class StorageErrors(KernelLogCheck):
    """Disks and file systems that report errors, or servers of files that do not answer.

    A server of CIFS that did not respond once is a note: the kernel connects to it anew, and says it again every three
    minutes where that fails.

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
        if event.count == 1 and _RECONNECTS.search(event.text):
            return replace(told(host, event, "did not respond, and the kernel connected to it anew"), severity="note")
        return told(host, event, "disk or file system reported an error")
