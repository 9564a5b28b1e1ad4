"""How far GPUs are from the RDMA devices of training, on the tree of PCIe bridges that sysfs shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterbench.checks._training import training
from clusterbench.checks._training_node import gpu_cards
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Infiniband
from clusterbench.host_facts import mappings

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""In nvidia-smi's words, the nearest first: one PCIe switch, several, the CPU's host bridge, another host bridge of the
same NUMA node, another NUMA node."""
ON_SWITCH = ("PIX", "PXB")


@dataclass(frozen=True)
class Neighbour:
    """A GPU in the order of PCIe addresses, and each training device's distance from it."""

    index: int
    address: str
    distances: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"GPU {self.index}"

    @property
    def nearest(self) -> tuple[str, ...]:
        """The devices at the least distance."""
        least = self.distance
        return tuple(device for device, distance in self.distances.items() if distance == least)

    @property
    def distance(self) -> str:
        return min(self.distances.values(), key=DISTANCES.index)


def neighbours(host: Host) -> Sequence[Neighbour]:
    """GPUs with their distances to training devices; none where the host lacks either.

    Raises
    ------
    NotKnown
        If the tree was not recorded, or shows no bridges, as a virtual machine's often does.
    """
    names = {port.device for port in training(host).ports}
    addresses = {device.name: device.address for device in host.of(Infiniband).devices if device.name in names}
    if host.environment.get("pcie") is None:
        raise NotKnown("the tree of PCIe devices was not recorded", "a run of this version of clusterbench")
    cards = {str(card.get("address")): card for card in mappings(host.environment["pcie"])}
    gpus = sorted(gpu_cards(host), key=lambda card: str(card.get("address")))
    devices = {name: cards[address] for name, address in addresses.items() if address in cards}
    if not gpus or not addresses:
        return ()
    if not devices or not all(card.get("path") for card in (*gpus, *devices.values())):
        why = "the PCIe tree shows no bridge above a GPU or RDMA device"
        raise NotKnown(why, "the host's own tree: a virtual machine's is made up (NCCL_TOPO_FILE)")
    return [
        Neighbour(index, str(gpu["address"]), {name: distance(gpu, device) for name, device in devices.items()})
        for index, gpu in enumerate(gpus)
    ]


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """One of :data:`DISTANCES`.

    >>> one = {"path": ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"], "numa_node": 0}
    >>> distance(one, {"path": ["0000:15:01.0", "0000:16:00.0", "0000:17:01.0"], "numa_node": 0})
    'PIX'
    >>> distance(one, {"path": ["0000:26:01.0"], "numa_node": 0}), distance(one, {"path": ["0000:95:01.0"]})
    ('NODE', 'SYS')
    """
    paths = one["path"], other["path"]
    shared = 0
    while shared < min(map(len, paths)) and paths[0][shared] == paths[1][shared]:
        shared += 1
    if shared:
        return "PIX" if max(map(len, paths)) - shared <= 1 else "PXB"
    if paths[0][0].rsplit(":", 1)[0] == paths[1][0].rsplit(":", 1)[0]:  # root ports on one bus
        return "PHB"
    return "NODE" if one.get("numa_node") == other.get("numa_node") else "SYS"
