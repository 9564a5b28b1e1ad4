from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._gpus import GpuCheck, answer, gpus_of
from clusterbench.facts import Host
from clusterbench.facts.gpus import VBIOS, Gpu


class Vbios(GpuCheck):
    """GPUs of one kind on one host whose VBIOS is not that of the others: often a board that was exchanged.

    Clocks, power and links can then differ (imbue's host checks, Meta's GCM compare it as well).
    """

    number = 30
    question = "Have GPUs of one kind one VBIOS?"
    severity = "warning"
    source = "NVML, VBIOS version"
    confirm = "nvidia-smi --query-gpu=index,pci.bus_id,vbios_version --format=csv"
    fix = "ask the maker of the server for the firmware that belongs to its boards, and bring all GPUs to it"
    asks = VBIOS
    parts = "NVIDIA GPUs with neighbours of their kind"
    in_order = "have the VBIOS of most"

    def parts_of(self, host: Host) -> Sequence[Gpu]:
        gpus = gpus_of(host)
        kinds = Counter(gpu.name for gpu in gpus)
        return [gpu for gpu in gpus if kinds[gpu.name] > 1 and VBIOS not in gpu.lacks]

    def fault(self, host: Host, part: Gpu) -> Fault | None:
        own = answer(host, part, part.vbios, VBIOS)
        versions = Counter(gpu.vbios for gpu in gpus_of(host) if gpu.name == part.name and gpu.vbios)
        if versions[own] * 2 > versions.total() or len(versions) == 1:
            return None
        others = " and ".join(f"{version} on {count}" for version, count in versions.most_common() if version != own)
        what = f"its VBIOS is {own}, and that of others of its kind {others}"
        return Fault(part.place, what, f"NVML VBIOS: {own}")
