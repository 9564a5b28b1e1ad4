from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer, gpus_of, is_on_pcie
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.gpus import GENERATION, GPU_GENERATION, MOST_GENERATION, Gpu
from clusterbench.facts.virtualization import Virtualization


class PcieGeneration(GpuCheck):
    """GPUs whose slot allows a lower PCIe generation than they can do: each step halves the rate.

    The generation at which the link runs now is no finding: an idle GPU lowers it. What it is under load is sampled
    while cases run and judged there (``slow_pcie``, check 13; DCGM, PCIE_GENERATION). In a virtual machine the slot is
    made up. Grace superchips reach their CPU over C2C and are left out.
    """

    number = 99
    question = "Does every slot allow the PCIe generation of its GPU?"
    severity = "error"
    source = "NVML, PCIe link generation"
    confirm = "nvidia-smi -q | grep -A6 'PCIe Generation'"
    fix = "look at the slot's speed in the BIOS (Auto, or the GPU's generation), at riser and cable"
    asks = MOST_GENERATION
    parts = "NVIDIA GPUs on PCIe"
    in_order = "in slots that allow their generation"

    def parts_of(self, host: Host) -> Sequence[Gpu]:
        return [gpu for gpu in gpus_of(host) if MOST_GENERATION not in gpu.lacks and is_on_pcie(gpu)]

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        most = answer(host, part, part.most_pcie_generation, MOST_GENERATION)
        own = answer(host, part, part.gpu_pcie_generation, GPU_GENERATION)
        now = answer(host, part, part.pcie_generation, GENERATION)
        if max(most, now) >= own:
            return None
        if host.of(Virtualization).is_virtual:
            raise NotKnown("a virtual machine does not show the slot", "a look at the host below it")
        evidence = f"NVML PCIe generation: GPU {own}; GPU and slot {most}"
        return Fault(part.place, f"its slot allows PCIe generation {most}, and the GPU could do {own}", evidence)
