from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault, PartsCheck
from clusterbench.checks._training_node import num_gpus
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import FOLDER as RDMA
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.modules import Modules
from clusterbench.facts.rdma_cards import FOLDER as BUS
from clusterbench.facts.rdma_cards import RdmaCard, RdmaCards
from clusterbench.facts.virtualization import Virtualization

_OWN_DRIVERS = ("mlx5_core", "mlx4_core", "efa", "erdma", "hfi1", None)


class RdmaDriver(PartsCheck[RdmaCard]):
    """Cards for RDMA on the PCIe bus of which the kernel has no RDMA device: NCCL then falls back to sockets.

    So it is after an update of kernel or OFED whose modules were not built, or where mlx5_ib was never loaded. An
    InfiniBand or EFA card does nothing else, so it is an error. An Ethernet card is one where another of its kind has
    its device, or where there are as many as one for two GPUs; else a note: cards for storage and management need none.
    Ports that a bond joined have one device, a card given to a virtual machine has none, and a container may show none.
    """

    number = 132
    question = "Has every network card for RDMA on the PCIe bus its RDMA device?"
    severity = "error"
    source = f"{BUS}/*/class, vendor, device, driver; {RDMA}"
    confirm = "lspci -nnk | grep -iEA3 'mellanox|infiniband|efa'; rdma dev; lsmod | grep -E 'mlx5_ib|efa'"
    fix = "modprobe mlx5_ib (EFA: efa), or build the driver for this kernel: ofed_info -s, dkms status, then a reboot"
    parts = "network cards for RDMA"
    in_order = "with their RDMA device"

    def parts_of(self, host: Host) -> Sequence[RdmaCard]:
        cards = host.of(RdmaCards).cards
        if cards is None:
            raise NotKnown(f"{BUS} is not there", f"a host that shows {BUS}")
        return [card for card in cards if card.driver in _OWN_DRIVERS and not (card.is_virtual and card.driver is None)]

    def fault(self, host: Host, part: RdmaCard) -> Fault | None:
        slots = _slots_with_device(host)
        if part.slot in slots:
            return None
        if host.of(Virtualization).container not in (None, "none"):
            raise NotKnown("a container may be shown no RDMA devices", "the doctor on the host below it")
        what = f"is on the PCIe bus and has no RDMA device: {_reason(host, part)}"
        shown = f"{len(host.of(Infiniband).devices)} devices"
        evidence = f"{BUS}/{part.address}: {part.id}, driver {part.driver or 'none'}; {RDMA}: {shown}"
        return Fault(f"network card {part.address}", what, evidence, severity=None if _needs(host, part) else "note")


def _slots_with_device(host: Host) -> set[str]:
    addresses = (device.address for device in host.of(Infiniband).devices)
    return {address.rpartition(".")[0] for address in addresses if address}


def _reason(host: Host, part: RdmaCard) -> str:
    if part.driver is None:
        return "no driver is bound to it"
    loaded = host.of(Modules).loaded
    return (
        f"{part.module} is not loaded"
        if loaded is not None and part.module not in loaded
        else f"{part.module} made none"
    )


def _needs(host: Host, part: RdmaCard) -> bool:
    """Whether a card without RDMA is surely ill."""
    if part.is_fabric:
        return True
    alike = [card for card in host.of(RdmaCards).cards or () if card.id == part.id and not card.is_virtual]
    slots = _slots_with_device(host)
    return any(card.slot in slots for card in alike) or len(alike) * 2 >= num_gpus(host) > 0
