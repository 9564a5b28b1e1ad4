from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, gpu_of, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event
from clusterbench.tools.xid import xid

ROW_REMAPPED = 63


class Xid(KernelLogCheck):
    """Xids: what the NVIDIA driver logs when a GPU, its memory, its link or a program on it fails.

    Severity by NVIDIA's Xid catalogue (``tools/xid.py``): an error where the GPU must be reset or looked at, a warning
    where that can wait, a note where it is usually the program's own fault (13, 31, 43, 45 ...) or nothing. Those of a
    GPU that was reset since are still in the log: see the time. A remapped row (63) is a note where NVML says that no
    row waits for a reset any more.
    """

    number = 18
    question = "Is the kernel's log free of Xids?"
    severity = "error"
    confirm = "dmesg -T | grep -i xid"
    fix = "what NVIDIA's Xid catalogue asks for, see the finding; after a reset: dcgmi diag -r 3"
    kinds = ("xid",)
    absent = "Xid"

    def fault(self, host: Host, event: Event) -> Fault | None:
        assert event.code is not None
        meaning = xid(event.code, event.text)
        fault = told(host, event, f"reported Xid {event.code} ({meaning.name})")
        gpu = gpu_of(host, event)
        if event.code == ROW_REMAPPED and gpu is not None and gpu.remap_pending is False:
            return replace(fault, what=f"{fault.what}: NVML says that no row waits any more", severity="note")
        return replace(fault, what=f"{fault.what}: {meaning.action}", severity=meaning.severity)
