from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host
from clusterbench.tools.kernel_log import Event


class AmdGpuLog(KernelLogCheck):
    """AMD's GPUs that their driver could not start or reset, or with errors that were not corrected.

    A reset, or a queue that stood still, is a warning: the program that ran is lost, and the GPU goes on.

    Source: Linux, ``drivers/gpu/drm/amd/amdgpu/amdgpu_{device,ras,job,umc}.c``; amd/node-scraper.
    """

    number = 151
    question = "Does the driver of AMD's GPUs report no failure?"
    severity = "error"
    confirm = "dmesg -T | grep amdgpu; amd-smi metric --ecc"
    fix = "amd-smi reset --gpureset, or reboot; if it comes back on one GPU, replace it"
    kinds = ("amd_gpu", "amd_gpu_reset")
    absent = "failure of an AMD GPU"

    def fault(self, host: Host, event: Event) -> Fault | None:
        if event.kind == "amd_gpu_reset":
            fault = told(host, event, "a queue of it stood still, or it was reset")
            return replace(fault, severity="warning")
        return told(host, event, "failed: an error that was not corrected, or it could not be started or reset")
