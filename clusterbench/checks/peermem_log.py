from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class PeermemLog(KernelLogCheck):
    """The module that lets network cards read GPU memory lost the context it was asked about.

    Source: leptonai/gpud, ``components/accelerator/nvidia/peermem``.
    """

    number = 4
    question = "Does nvidia_peermem work without errors?"
    severity = "warning"
    confirm = "dmesg -T | grep -i peermem"
    fix = "update driver and OFED together; with open kernel modules use DMA-BUF instead of nvidia_peermem"
    kinds = ("peermem",)
    absent = "error of nvidia_peermem"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "nvidia_peermem was asked to free memory of a context that it does not know")
