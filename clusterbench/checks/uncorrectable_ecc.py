from __future__ import annotations

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer
from clusterbench.facts import Host
from clusterbench.facts.gpus import VOLATILE, Gpu
from clusterbench.words import plural


class UncorrectableEcc(GpuCheck):
    """Errors of a GPU's memory or caches that ECC could not correct since the driver was loaded: each ended a program.

    Until the GPU is reset its bad rows are in use. Without root the kernel's log, which has an Xid for each, is not
    seen, and this count is what tells of them.
    """

    number = 140
    question = "Has every GPU been free of errors that ECC could not correct since its driver was loaded?"
    severity = "warning"
    source = "NVML, volatile ECC errors"
    confirm = "nvidia-smi -q -d ECC"
    fix = "reset the GPU, so that the rows are replaced; if rows are used up, or errors come back, RMA"
    asks = VOLATILE
    parts = "NVIDIA GPUs with ECC"
    in_order = "have had no error that could not be corrected"

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        errors = answer(host, part, part.volatile_uncorrectable, VOLATILE)
        if not errors:
            return None
        counted = plural(errors, "error of its memory or caches", "errors of its memory or caches")
        what = f"{counted} could not be corrected since the driver was loaded"
        return Fault(part.place, what, f"NVML volatile uncorrectable ECC errors: {errors}")
