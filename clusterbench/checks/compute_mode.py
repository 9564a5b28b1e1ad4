from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import COMPUTE_MODE, DEFAULT_MODE, Gpu


class ComputeMode(GpuCheck):
    """GPUs that take no process, or only one at a time.

    In the mode *prohibited* CUDA refuses every process. *Exclusive process* lets one rank train, and refuses whoever
    opens a second context: a check beside a run, two ranks of one GPU. ``nvmlComputeMode_t`` in nvml.h.
    """

    number = 96
    question = "Does every GPU take more than one process?"
    severity = "warning"
    source = "NVML, compute mode"
    confirm = "nvidia-smi --query-gpu=index,compute_mode --format=csv"
    fix = "nvidia-smi -i GPU -c DEFAULT"
    asks = COMPUTE_MODE
    in_order = "are in compute mode default"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        mode = answer(host, part, part.compute_mode, COMPUTE_MODE)
        if mode == DEFAULT_MODE:
            return None
        evidence = f"NVML compute mode: {mode}"
        if mode == "prohibited":
            return Fault(part.place, "takes no process: its compute mode is prohibited", evidence, severity="error")
        return Fault(part.place, f"takes one process at a time: its compute mode is {mode}", evidence)
