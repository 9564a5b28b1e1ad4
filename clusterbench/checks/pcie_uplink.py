from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterbench.checks import Fault, PartsCheck
from clusterbench.checks._pcie_devices import devices
from clusterbench.facts import Host, known
from clusterbench.facts.pcie import Device, Pcie


class PcieUplink(PartsCheck[Device]):
    """PCIe switches above GPUs or RDMA cards whose link towards the CPU is narrower than both its ends could make it.

    All that hangs on the switch shares that link to the CPU's memory and to other switches. Above network cards, which
    do not lower their link while idle, its speed is judged as well. A switch is two bridges in a row, of which the one
    nearer to the CPU has that link.
    """

    number = 137
    question = "Does the link of every PCIe switch towards the CPU have its full width?"
    severity = "error"
    source = "/sys/bus/pci/devices/*/current_link_speed, current_link_width, max_link_speed, max_link_width"
    confirm = "lspci -tv; lspci -vv -s ADDRESS | grep -E 'LnkCap:|LnkSta:'"
    fix = "reseat the riser, cable or board of the switch; look at the slot's width and speed in the BIOS; else RMA"
    parts = "PCIe switches"
    in_order = "with their full link towards the CPU"

    def parts_of(self, host: Host) -> Sequence[Device]:
        every = _by_address(host)
        return [device for device in every.values() if device.kind == "bridge" and len(_above(every, device)) % 2]

    def fault(self, host: Host, part: Device) -> Fault | None:
        facts, every = host.of(Pcie), _by_address(host)
        port = every[str(part.above)]
        width = known(facts, part.width, f"{part.path}/current_link_width")
        most_width = min(known(facts, end.most_width, f"{end.path}/max_link_width") for end in (part, port))
        evidence = f"{part.path}/current_link_width: {width}; max_link_width: {most_width}"
        if width < most_width:
            return Fault(part.place, f"its link towards the CPU is x{width}, and could be x{most_width}", evidence)
        if not any(device.kind == "nic" and part in _above(every, device) for device in every.values()):
            return None
        speed = known(facts, part.gigatransfers_per_s, f"{part.path}/current_link_speed")
        most = min(known(facts, end.most_gigatransfers_per_s, f"{end.path}/max_link_speed") for end in (part, port))
        if speed < most:
            evidence = f"{part.path}/current_link_speed: {speed:g} GT/s; max_link_speed: {most:g} GT/s"
            what = f"its link towards the CPU runs at {speed:g} GT/s, and could at {most:g} GT/s"
            return Fault(part.place, what, evidence)
        return None


def _by_address(host: Host) -> Mapping[str, Device]:
    return {device.address: device for device in devices(host, "gpu", "nic", "bridge")}


def _above(every: Mapping[str, Device], device: Device) -> list[Device]:
    """The bridges above a device, the nearest first."""
    above: list[Device] = []
    while device.above is not None and device.above in every:
        device = every[device.above]
        above.append(device)
    return above
