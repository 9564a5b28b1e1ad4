from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, Judged, PartsCheck
from clusterbench.checks._pcie import ON_SWITCH, Neighbour, neighbours
from clusterbench.facts import Host
from clusterbench.facts.infiniband import Infiniband
from clusterbench.host_facts import mappings

_OVER_C2C = ("GB200", "GB300", "GH200", "GB10")
_WAY = {
    "PHB": "through the CPU's host bridge",
    "NODE": "between host bridges of its NUMA node",
    "SYS": "on another NUMA node",
}


class GpuNicDistance(PartsCheck[Neighbour]):
    """GPUs of which no training device shares a PCIe switch.

    NCCL uses GPUDirect RDMA up to the distance PXB and copies through the CPU's memory beyond, unless
    ``NCCL_NET_GDR_LEVEL`` says otherwise. Across host bridges or NUMA nodes it is an error; through one host bridge, or
    where there are fewer devices than GPUs (NCCL then goes by another GPU's device, over NVLink), a warning. GPUs on
    NVLink-C2C are left out: theirs is another way.

    Source: NVIDIA/nccl, ``src/graph/paths.cc``, ncclTopoCheckGdr; linux-rdma/perftest issue 241.
    """

    number = 8
    question = "Does every GPU share a PCIe switch with an RDMA device of training?"
    severity = "error"
    source = "/sys/bus/pci/devices"
    confirm = "nvidia-smi topo -m; lspci -tv"
    fix = "move the card to a slot of the GPU's switch; name in NCCL_IB_HCA the one that is there"
    parts = "GPUs"
    in_order = "with an RDMA device on their PCIe switch"

    def judge(self, host: Host) -> Judged:
        gpus = mappings(host.environment.get("gpus"))
        if host.of(Infiniband) and any(name in str(gpu.get("name")) for gpu in gpus for name in _OVER_C2C):
            return Judged(not_applicable="GPUs here reach RDMA devices over NVLink-C2C")
        return super().judge(host)

    def parts_of(self, host: Host) -> Sequence[Neighbour]:
        return neighbours(host)

    def fault(self, host: Host, part: Neighbour) -> Fault | None:
        if part.distance in ON_SWITCH:
            return None
        nearest, way = part.nearest[0], _WAY[part.distance]
        is_short = len(part.distances) < len(neighbours(host))
        what = f"shares no PCIe switch with an RDMA device: the nearest, {nearest}, is {way} ({part.distance})"
        evidence = f"/sys/bus/pci/devices/{part.address}: {nearest} at distance {part.distance}"
        return Fault(part.name, what, evidence, severity="warning" if is_short or part.distance == "PHB" else None)
