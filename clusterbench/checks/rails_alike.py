from __future__ import annotations

from collections.abc import Mapping

from clusterbench.checks import AlikeCheck, Trait
from clusterbench.checks._pcie import ON_SWITCH, neighbours
from clusterbench.facts import Host


class RailsAlike(AlikeCheck):
    """The training device beside each GPU, where it has another name on some hosts.

    NCCL joins devices of one place in the list into a rail: where names moved, a rail crosses to another switch of the
    network, and where rails are separate networks, connections time out. GPUs are held against those of the same PCIe
    address: their numbers move up where one has left the bus.
    """

    number = 123
    question = "Is the RDMA device beside a GPU the same one on all hosts?"
    severity = "warning"
    source = "/sys/bus/pci/devices, /sys/class/infiniband/*/device"
    confirm = "nvidia-smi topo -m; ls -l /sys/class/infiniband"
    fix = "name devices by their place (udev: NAME_PCI of rdma-core's rdma-persistent-naming), and cable hosts alike"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        return {
            f"the RDMA device beside the GPU {gpu.address}": Trait(
                "/".join(gpu.nearest), f"/sys/bus/pci/devices/{gpu.address}", gpu.name
            )
            for gpu in neighbours(host)
            if gpu.distance in ON_SWITCH
        }
