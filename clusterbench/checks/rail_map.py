from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._pcie import ON_SWITCH, Neighbour, neighbours
from clusterbench.facts import Host
from clusterbench.words import few


class RailMap(HostCheck):
    """Which training device stands on which GPU's PCIe switch, where there are as many of the ones as of the others.

    Rails are built so that each GPU has a device of its own: a device beside no GPU, or two GPUs that share one, means
    a card in the wrong slot or one that failed and was left out.
    """

    number = 61
    question = "Has every GPU an RDMA device of its own on its PCIe switch?"
    severity = "warning"
    source = "/sys/bus/pci/devices"
    confirm = "nvidia-smi topo -m; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH"
    fix = "move cards to the slots that the maker's rail map names; look for devices that are missing"

    def judge(self, host: Host) -> Judged:
        gpus = neighbours(host)
        if not gpus:
            return Judged(not_applicable="no GPU with RDMA devices here")
        near = [gpu for gpu in gpus if gpu.distance in ON_SWITCH]
        if not near:
            return Judged(not_applicable="no GPU here shares a PCIe switch with an RDMA device")
        if len(gpus[0].distances) != len(gpus):
            return Judged(
                not_applicable=f"{len(gpus[0].distances)} RDMA devices for {len(gpus)} GPUs: no rail for each"
            )
        faults = (*_alone(gpus), *_shared(near))
        rails = few([f"{gpu.name} {'/'.join(gpu.nearest)}" for gpu in gpus], 16)
        return Judged(faults, "" if faults else rails)


def _alone(gpus: Sequence[Neighbour]) -> Iterator[Fault]:
    """Devices that stand beside no GPU."""
    for device in gpus[0].distances:
        nearest = min(gpus, key=lambda gpu: (gpu.distances[device] not in ON_SWITCH, gpu.index))
        if nearest.distances[device] not in ON_SWITCH:
            evidence = f"/sys/bus/pci/devices: {device} at distance {nearest.distances[device]} from {nearest.name}"
            yield Fault(device, "shares no PCIe switch with a GPU", evidence)


def _shared(near: Sequence[Neighbour]) -> Iterator[Fault]:
    """GPUs that outnumber the devices on their switch."""
    groups: dict[tuple[str, ...], list[Neighbour]] = defaultdict(list)
    for gpu in near:
        groups[gpu.nearest].append(gpu)
    for devices, gpus in groups.items():
        if len(gpus) > len(devices):
            names = few([gpu.name for gpu in gpus])
            evidence = f"/sys/bus/pci/devices: {names} at distance {gpus[0].distance} from {few(devices)}"
            yield Fault(names, f"share {few(devices)}, and there is an RDMA device for every GPU of the host", evidence)
