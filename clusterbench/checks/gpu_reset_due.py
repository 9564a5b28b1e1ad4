from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import NO_ACTION, RECOVERY, Gpu


class GpuResetDue(GpuCheck):
    """GPUs of which the driver says that they are to be reset, or their host rebooted, before they are used again.

    It says so after an error that a program's end does not mend, and needs no right to be asked, as the kernel's log
    with its Xids does. Drivers before 565 do not know of it.
    """

    number = 141
    question = "Does the driver ask for no reset of a GPU?"
    severity = "error"
    source = "NVML, GPU recovery action"
    confirm = "nvidia-smi -q | grep -A1 'GPU Recovery Action'"
    fix = "end its programs, then nvidia-smi --gpu-reset, or reboot; look for Xids in the kernel's log"
    asks = RECOVERY
    parts = "NVIDIA GPUs that tell of it"
    in_order = "ask for no reset"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        action = answer(host, part, part.recovery_action, RECOVERY)
        if action == NO_ACTION:
            return None
        return Fault(part.place, f"the driver asks for recovery: {action}", f"NVML GPU recovery action: {action}")
