from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import PERSISTENCE, Gpu


class PersistenceMode(GpuCheck):
    """GPUs whose driver state is torn down when the last process leaves them.

    Each first use then costs seconds, and limits that were set are lost (NVIDIA's driver persistence guide; DCGM,
    PERSISTENCE_MODE). A running ``nvidia-persistenced`` sets it, too.
    """

    number = 25
    question = "Does the driver keep every GPU initialised while nothing uses it?"
    severity = "note"
    source = "NVML, persistence mode"
    confirm = "nvidia-smi -q | grep 'Persistence Mode'"
    fix = "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1"
    asks = PERSISTENCE
    in_order = "have persistence mode on"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        if answer(host, part, part.persistence, PERSISTENCE):
            return None
        return Fault(part.place, "persistence mode is off", "NVML persistence mode: disabled")
