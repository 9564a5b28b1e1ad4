from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer, gpus_of, is_on_pcie
from clusterbench.facts import Host
from clusterbench.facts.gpus import MOST_WIDTH, WIDTH, Gpu

FULL = 16


class PcieWidth(GpuCheck):
    """GPUs whose PCIe link runs on fewer lanes than GPU and slot have, or on fewer than 16.

    Unlike its generation, the width of a link is not lowered while the GPU is idle: each lost half halves the rate to
    the host and the network (DCGM, PCIE_WIDTH). Grace superchips reach their CPU over C2C and are left out.
    """

    number = 14
    question = "Does every GPU's PCIe link use all of its lanes?"
    severity = "error"
    source = "NVML, PCIe link width"
    confirm = "nvidia-smi --query-gpu=index,pci.bus_id,pcie.link.width.current,pcie.link.width.max --format=csv"
    fix = "reseat the GPU, its riser or its cable; look for lanes shared with another slot in the BIOS"
    asks = WIDTH
    parts = "NVIDIA GPUs on PCIe"
    in_order = "have all lanes of their link"

    def parts_of(self, host: Host) -> Sequence[Gpu]:
        return [gpu for gpu in gpus_of(host) if WIDTH not in gpu.lacks and is_on_pcie(gpu)]

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        width, most = answer(host, part, part.pcie_width, WIDTH), answer(host, part, part.most_pcie_width, MOST_WIDTH)
        evidence = f"NVML PCIe link width: x{width}; most x{most}"
        if width < most:
            return Fault(part.place, f"its PCIe link is x{width}, and could be x{most}", evidence)
        if width < FULL:
            what = f"its PCIe link is x{width}, all that its slot has; most GPUs have x{FULL}"
            return Fault(part.place, what, evidence, severity="warning")
        return None
