from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._gpus import gpus_of
from clusterbench.facts import Host, known
from clusterbench.facts.gpus import Gpu
from clusterbench.facts.nvlinks import P2P, Nvlinks, Pair
from clusterbench.words import few, plural


class PeerAccess(HostCheck):
    """GPUs that may not read each other's memory: NCCL then goes through the memory of the host.

    Between GPUs that NVLink joins it is an error, and NCCL warns of it (src/graph/paths.cc). Between cards on PCIe it
    is a note: GeForce cards cannot, and others may not where their slots are of two CPUs.
    """

    number = 37
    question = "May GPUs of a host read each other's memory?"
    severity = "error"
    source = "NVML, P2P status"
    confirm = "nvidia-smi topo -p2p r; nvidia-smi topo -p2p n"
    fix = "remove settings that disable peer-to-peer (NVreg_RegistryDwords, ForceP2P); look at ACS, IOMMU and MIG"

    def judge(self, host: Host) -> Judged:
        gpus = gpus_of(host)
        if len(gpus) < 2:
            return Judged(not_applicable="fewer than two NVIDIA GPUs here")
        facts = host.of(Nvlinks)
        number = known(facts, facts.num_pairs, P2P)
        joined = [pair for pair in facts.refused if pair.nvlink]
        others = [pair for pair in facts.refused if not pair.nvlink]
        faults = [_fault(pair, gpus) for pair in joined]
        if others:
            shown = few([f"{pair.first} and {pair.second}" for pair in others])
            what = f"{plural(len(others), 'pair')} of GPUs may not read each other: {shown}"
            evidence = f"NVML P2P read status: {', '.join(sorted({pair.status for pair in others}))}"
            faults.append(Fault("", what, evidence, severity="note"))
        well = number - len(facts.refused)
        return Judged(tuple(faults), f"{plural(well, 'pair')} of GPUs may read each other" if well > 0 else "")


def _fault(pair: Pair, gpus: Sequence[Gpu]) -> Fault:
    names = {gpu.index: gpu.place for gpu in gpus}
    first, second = (names.get(index, f"GPU {index}") for index in (pair.first, pair.second))
    what = f"may not read each other's memory, though NVLink joins them: {pair.status}"
    return Fault(f"{first} and {second}", what, f"NVML P2P read status: {pair.status}; NVLink status: ok")
