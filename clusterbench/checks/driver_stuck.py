from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class DriverStuck(KernelLogCheck):
    """NVIDIA's driver asks again and again which NVLinks are up, and gets no answer: nvidia-smi and CUDA hang.

    Source: NVIDIA/open-gpu-kernel-modules, issue 971 (driver 570 after 66 days); leptonai/gpud, pull request 1271.
    """

    number = 174
    question = "Does NVIDIA's driver get an answer from every NVLink?"
    severity = "error"
    confirm = "dmesg -T | grep -i RxDet; timeout 20 nvidia-smi"
    fix = "reboot; if it comes back after weeks, a newer driver; if at once, the GPU or the baseboard"
    kinds = ("driver_stuck",)
    absent = "question about NVLinks that the driver got no answer to"

    def fault(self, host: Host, event: Event) -> Fault | None:
        return told(host, event, "NVIDIA's driver got no answer when it asked which NVLinks are up")
