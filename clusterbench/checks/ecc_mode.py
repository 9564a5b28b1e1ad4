from __future__ import annotations

import re

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import ECC, Gpu
from clusterbench.types import Severity

_OFF_BY_CHOICE = re.compile(r"GeForce|RTX|Quadro|TITAN")


class EccMode(GpuCheck):
    """GPUs whose memory is not protected against flipped bits: training goes on with wrong numbers, without an error.

    NVIDIA's data centre boards come with ECC on, and count, replace and report errors with it alone: without it the
    checks of remapped rows and Xids see none. On workstation boards it is a choice, which costs memory and bandwidth
    there, and off is a note. Boards that do not have it are left out.

    Source: NVIDIA, nvidia-smi manual (ECC Mode); GPU memory error management.
    """

    number = 133
    question = "Is the memory of every GPU protected by ECC?"
    severity = "warning"
    source = "NVML, ECC mode"
    confirm = "nvidia-smi --query-gpu=index,ecc.mode.current,ecc.mode.pending --format=csv"
    fix = "nvidia-smi -e 1 as root, then a reset of the GPU (nvidia-smi -r) or a reboot"
    asks = ECC
    parts = "NVIDIA GPUs that have ECC"
    in_order = "with it on"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        if answer(host, part, part.ecc, ECC):
            return None
        severity: Severity | None = "note" if _OFF_BY_CHOICE.search(part.name or "") else None
        return Fault(
            part.place, "its ECC is off: errors of its memory go unseen", "NVML ECC mode: off", severity=severity
        )
