from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class NcclCrash(KernelLogCheck):
    """Programs that crashed inside NCCL.

    Source: leptonai/gpud, ``components/accelerator/nvidia/nccl``.
    """

    number = 119
    question = "Has no program crashed inside NCCL?"
    severity = "warning"
    confirm = "dmesg -T | grep libnccl"
    fix = "look for Xids and fabric errors at the same time; is one NCCL loaded by all ranks?"
    kinds = ("nccl_crash",)
    absent = "crash inside NCCL"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, f"{event.where} crashed inside NCCL", "")
