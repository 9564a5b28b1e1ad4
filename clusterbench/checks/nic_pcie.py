from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._pcie_devices import PcieCheck, devices, not_of_a_virtual_function
from clusterbench.facts import Host, known
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.pcie import Device, Pcie

_FROM_GENERATION_3, _ENCODED = 8.0, (0.8, 128 / 130)


class NicPcie(PcieCheck):
    """RDMA cards whose PCIe link is slower or narrower than card and slot could make it, or than their ports need.

    Network cards do not lower their link while idle. A slot that is below the card is no finding as long as it carries
    what the card's ports do: mlx5 says "available PCIe bandwidth, limited by" of it in the kernel's log.
    """

    number = 15
    question = "Does every network card's PCIe link run at its full speed and width?"
    severity = "error"
    source = "/sys/bus/pci/devices/*/current_link_speed, current_link_width, max_link_speed, max_link_width"
    confirm = "lspci -vv -s ADDRESS | grep -E 'LnkCap:|LnkSta:'; dmesg | grep 'available PCIe bandwidth'"
    fix = "reseat the card, its riser or cable; move it to a slot of its generation; set the slot's speed in the BIOS"
    parts = "network cards"
    in_order = "have the PCIe link that they and their slot can do"

    def parts_of(self, host: Host) -> Sequence[Device]:
        return devices(host, "nic")

    def fault(self, host: Host, part: Device) -> Fault | None:
        if part.is_virtual:
            raise not_of_a_virtual_function("its card's PCIe link")
        facts = host.of(Pcie)
        speed = known(facts, part.gigatransfers_per_s, f"{part.path}/current_link_speed")
        width = known(facts, part.width, f"{part.path}/current_link_width")
        most_speed = known(facts, part.most_gigatransfers_per_s, f"{part.path}/max_link_speed")
        most_width = known(facts, part.most_width, f"{part.path}/max_link_width")
        slot = next((each for each in devices(host, "bridge") if each.address == part.above), None)
        could = (
            min(most_speed, (slot and slot.most_gigatransfers_per_s) or most_speed),
            min(most_width, (slot and slot.most_width) or most_width),
        )
        evidence = f"{part.path}: {speed:g} GT/s x{width}; the card could {most_speed:g} GT/s x{most_width}"
        if speed < could[0] or width < could[1]:
            what = f"its PCIe link runs at {speed:g} GT/s x{width}, and could at {could[0]:g} GT/s x{could[1]}"
            return Fault(_named(host, part), what, evidence)
        carries, needs = bits_per_s(speed, width), _ports_bits_per_s(host, part)
        if carries < needs:
            what = f"its slot carries {carries / 1e9:.0f} Gb/s, and its ports do {needs / 1e9:.0f} Gb/s"
            return Fault(_named(host, part), what, evidence)
        return None


def bits_per_s(gigatransfers_per_s: float, width: int) -> float:
    """What a PCIe link carries before packets have their headers.

    >>> round(bits_per_s(16.0, 16) / 1e9, 1)  # "252.048 Gb/s available PCIe bandwidth" in the kernel's words
    252.1
    """
    return gigatransfers_per_s * 1e9 * width * _ENCODED[gigatransfers_per_s >= _FROM_GENERATION_3]


def _devices_of(host: Host, card: Device) -> list[str]:
    return [device.name for device in host.of(Infiniband).devices if device.address == card.address]


def _named(host: Host, card: Device) -> str:
    """``mlx5_3 (0000:4b:00.0)``"""
    names = ", ".join(_devices_of(host, card))
    return f"{names} ({card.address})" if names else card.place


def _ports_bits_per_s(host: Host, card: Device) -> float:
    names = _devices_of(host, card)
    return sum(port.bits_per_s or 0.0 for port in host.of(Infiniband).ports if port.device in names)
