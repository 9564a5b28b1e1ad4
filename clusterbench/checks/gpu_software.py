from __future__ import annotations

from collections.abc import Mapping

from clusterbench.checks import AlikeCheck, Trait
from clusterbench.checks._gpus import gpus_of
from clusterbench.facts import Host, known
from clusterbench.facts.gpus import NVML, Gpus


class GpuSoftware(AlikeCheck):
    """The NVIDIA driver, and the VBIOS of each kind of GPU, that differ from those of other hosts."""

    number = 97
    question = "Have all hosts one NVIDIA driver and one VBIOS for each kind of GPU?"
    severity = "warning"
    source = "NVML, driver and VBIOS version"
    confirm = "nvidia-smi --query-gpu=name,driver_version,vbios_version --format=csv | sort | uniq -c"
    fix = "bring the odd hosts to the driver and firmware of the others"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        gpus = gpus_of(host)
        if not gpus:
            return {}
        facts = host.of(Gpus)
        traits = {"the NVIDIA driver": Trait(known(facts, facts.driver_version, NVML), "NVML driver version")}
        for name in sorted({gpu.name for gpu in gpus if gpu.name}):
            versions = sorted({gpu.vbios for gpu in gpus if gpu.name == name and gpu.vbios})
            if versions:
                traits[f"the VBIOS of {name}"] = Trait(" and ".join(versions), "NVML VBIOS")
        return traits
