from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer, judged_by_nvml
from clusterbench.facts import Host
from clusterbench.facts.gpus import SRAM, SRAM_OLD, Gpu

MOST_ERRORS = 4


class SramEcc(GpuCheck):
    """Uncorrectable errors in a GPU's caches and registers (SRAM), counted over its life.

    A board with more than four is one to return (ml-engineering, compute/accelerator/nvidia/debug.md, on NVIDIA's RMA
    policy); since driver 550 the board says itself that its threshold is exceeded. One to four are a warning: Azure's
    health checks take such a host out.
    """

    number = 21
    question = "Are the caches and registers of every GPU free of uncorrectable errors?"
    severity = "error"
    source = "NVML, SRAM ECC errors"
    confirm = "nvidia-smi -q -d ECC"
    fix = "run NVIDIA's field diagnostics; RMA when the threshold is exceeded or the count is above four"
    asks = SRAM_OLD
    parts = "NVIDIA GPUs with ECC"
    in_order = "have no uncorrectable SRAM error"

    def parts_of(self, host: Host) -> Sequence[Gpu]:
        return [gpu for gpu in judged_by_nvml(host) if not {SRAM, SRAM_OLD} <= {*gpu.lacks}]

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        errors = answer(host, part, part.sram_uncorrectable, SRAM_OLD)
        exceeded = part.sram_threshold_exceeded
        if not (errors or exceeded):
            return None
        says = {True: ", threshold exceeded", False: ", threshold not exceeded", None: ""}[exceeded]
        evidence = f"NVML aggregate uncorrectable SRAM errors: {errors}{says}"
        what = (
            f"{errors} uncorrectable errors in its SRAM, in its life" if errors != 1 else "one uncorrectable SRAM error"
        )
        if exceeded or errors > MOST_ERRORS:
            return Fault(part.place, f"{what}: the board is to be returned", evidence)
        return Fault(part.place, what, evidence, severity="warning")
