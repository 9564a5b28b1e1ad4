from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class GpuStart(KernelLogCheck):
    """GPUs that the NVIDIA driver could not start: programs see fewer of them.

    Source: NVIDIA's open kernel modules, ``RmInitAdapter``.
    """

    number = 113
    question = "Did the driver start every GPU?"
    severity = "error"
    confirm = "dmesg -T | grep RmInitAdapter; nvidia-smi -L"
    fix = "power the host off and on; reinstall the driver of this kernel; if it is always the same GPU, replace it"
    kinds = ("gpu_start",)
    absent = "GPU that did not start"

    def fault(self, host: Host, event: Event) -> Fault | None:
        why = " (RmInitAdapter failed)" if "dapter failed" in event.text else ""
        return told(host, event, f"could not be started by the driver{why}")
