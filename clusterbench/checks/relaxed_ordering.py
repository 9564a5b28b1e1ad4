from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._pcie_devices import PcieCheck, devices, not_of_a_virtual_function
from clusterbench.facts import Host, known
from clusterbench.facts.pcie import CONFIG, Device, Pcie


class RelaxedOrdering(PcieCheck):
    """GPUs and RDMA cards that may not let one PCIe write overtake another.

    Without it writes to memory wait for each other, and cards of 200 Gb/s and more do not reach their rate on many
    CPUs (perftest warns of memory that is "not PCIe relaxed ordering compliant"; NCCL lists ``[RO]`` where it uses it).
    """

    number = 9
    question = "May GPUs and network cards use PCIe relaxed ordering?"
    severity = "warning"
    source = CONFIG
    right = "root"
    confirm = "lspci -vvv | grep -E '^[0-9a-f]|RlxdOrd'"
    fix = "set PCIe relaxed ordering to on in the BIOS; for a ConnectX: mlxconfig -d DEVICE set PCI_WR_ORDERING=1"
    parts = "GPUs and network cards"
    in_order = "may use relaxed ordering"

    def parts_of(self, host: Host) -> Sequence[Device]:
        return devices(host, "gpu", "nic")

    def fault(self, host: Host, part: Device) -> Fault | None:
        if known(host.of(Pcie), part.relaxed_ordering, CONFIG):
            return None
        if part.is_virtual:
            raise not_of_a_virtual_function("whether its card may use relaxed ordering")
        return Fault(part.place, "may not use PCIe relaxed ordering", f"{part.path}/config: DevCtl RlxdOrd-")
