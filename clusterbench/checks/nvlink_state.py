from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, PartsCheck
from clusterbench.checks._gpus import gpus_of
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.gpus import Gpu
from clusterbench.facts.nvlinks import NVML, GpuLinks, Nvlinks
from clusterbench.words import listed

LINKS = {
    "Tesla V100-SXM2-16GB": 6,
    "Tesla V100-SXM2-32GB": 6,
    "Tesla V100-SXM3-32GB": 6,
    "A100-SXM4-40GB": 12,
    "NVIDIA A100-SXM4-40GB": 12,
    "A100-SXM4-80GB": 12,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA A800-SXM4-80GB": 8,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H800": 8,
    "NVIDIA H20": 18,
    "NVIDIA H200": 18,
    "NVIDIA B200": 18,
    "NVIDIA B300 SXM6 AC": 18,
    "NVIDIA GB200": 18,
    "NVIDIA GB300": 18,
}
"""NVLinks of a product by the name that NVML gives it: its data sheet's rate by that of one link (V100 300 GB/s at 50,
A100 600 at 50, A800 and H800 400 at 50, H100, H200 and H20 900 at 50, B200 and its kin 1800 at 100)."""


class NvlinkState(PartsCheck[GpuLinks]):
    """GPUs with fewer NVLinks up than their product has: every exchange with them is slower by that share, or fails.

    What a product has is a table by name, with data sheets as its source. Cards with bridges (an H100 PCIe has 12 of 18
    up, and none without a bridge) and products that are not in the table are not judged: an inactive link may be
    as it should be (Azure/azurehpc-health-checks#162, NVIDIA/DCGM#198).
    """

    number = 32
    question = "Are all NVLinks of every GPU up?"
    severity = "error"
    source = "NVML, NVLink states"
    confirm = "nvidia-smi nvlink --status; dmesg | grep -E 'NVLink|SXid'"
    fix = (
        "reset the GPUs (nvidia-smi -r) or reboot; is the fabric manager running? if it stays, RMA of GPU or baseboard"
    )
    parts = "NVIDIA GPUs with NVLink"
    in_order = "have all their NVLinks up"

    def parts_of(self, host: Host) -> Sequence[GpuLinks]:
        gpus = gpus_of(host)
        if len(gpus) < 2:
            return ()
        facts = host.of(Nvlinks)
        found = known(facts, facts.gpus, NVML)
        kinds = {gpu.index: gpu.name for gpu in gpus}
        return [each for each in found if each.up or each.down or kinds.get(each.gpu) in LINKS]

    def fault(self, host: Host, part: GpuLinks) -> Fault | None:
        gpu = next((each for each in gpus_of(host) if each.index == part.gpu), Gpu(part.gpu))
        if part.error or gpu.error:
            raise NotKnown(f"{gpu.place}: {part.error or gpu.error}", "a GPU that answers")
        if gpu.name not in LINKS:
            raise NotKnown(
                f"how many NVLinks {gpu.name or gpu.place} should have up is not on record", "its data sheet"
            )
        expected = LINKS[gpu.name]
        if len(part.up) >= expected:
            return None
        down = f", down {', '.join(map(str, part.down))}" if part.down else ""
        evidence = f"NVML NVLink states: {len(part.up)} up{down}; {gpu.name} has {expected}"
        if not part.up:
            return Fault(gpu.place, f"none of its {expected} NVLinks is up", evidence)
        which = f" ({listed('link', part.down)})" if part.down and len(part.down) == expected - len(part.up) else ""
        return Fault(gpu.place, f"{len(part.up)} of its {expected} NVLinks are up{which}", evidence)
