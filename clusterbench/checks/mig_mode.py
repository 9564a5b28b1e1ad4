from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import MIG, Gpu


class MigMode(GpuCheck):
    """GPUs that are partitioned: instances of MIG have no NVLink and no peer-to-peer, and NCCL cannot join them.

    NVIDIA's MIG user guide, "Application Considerations".
    """

    number = 95
    question = "Is every GPU whole, with MIG off?"
    severity = "error"
    source = "NVML, MIG mode"
    confirm = "nvidia-smi -q | grep -A2 'MIG Mode'"
    fix = "nvidia-smi -i GPU -mig 0 while nothing uses it; on some hosts the GPU needs a reset"
    asks = MIG
    parts = "NVIDIA GPUs with MIG"
    in_order = "have MIG off"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        if not answer(host, part, part.mig, MIG):
            return None
        return Fault(part.place, "is cut into instances (MIG)", "NVML MIG mode: enabled")
