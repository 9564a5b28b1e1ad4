from __future__ import annotations

from collections.abc import Sequence

from clusterbench.checks import Fault
from clusterbench.checks._pcie_devices import PcieCheck, devices, not_of_a_virtual_function
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.pcie import CONFIG, Device, Pcie


class PciePayload(PcieCheck):
    """GPUs and RDMA cards whose packets on PCIe are larger than a bridge above takes, or smaller than they could be.

    A bridge drops a packet with more data than it is set to take as malformed, and the device with it fails. Smaller
    ones cost: of 128 bytes of data with 24 to 30 of headers about a sixth of the link is lost, of 256 a tenth.
    """

    number = 139
    question = "Do packets of GPUs and network cards on PCIe carry as much as all on their way can?"
    severity = "error"
    source = CONFIG
    right = "root"
    confirm = "lspci -vvv | grep -E '^[0-9a-f]|MaxPayload'"
    fix = "set the maximum payload in the BIOS to auto or 256 bytes, or boot with pci=pcie_bus_safe: Linux then sets it"
    parts = "GPUs and network cards"
    in_order = "send packets of the size that all bridges above take"

    def parts_of(self, host: Host) -> Sequence[Device]:
        return devices(host, "gpu", "nic")

    def fault(self, host: Host, part: Device) -> Fault | None:
        if part.is_virtual:
            raise not_of_a_virtual_function("how large its packets are")
        pcie, above = host.of(Pcie), _above(host, part)
        own = known(pcie, part.payload_bytes, CONFIG)
        evidence = f"{part.path}/config: DevCtl MaxPayload {own} bytes"
        for bridge in above:
            taken = known(pcie, bridge.payload_bytes, CONFIG)
            if taken < own:
                what = f"sends packets with {own} bytes of data, and {bridge.place} above takes {taken}"
                return Fault(part.place, what, f"{evidence}; {bridge.path}/config: {taken} bytes")
        most = min(known(pcie, each.most_payload_bytes, CONFIG) for each in (part, *above))
        if own >= most:
            return None
        if not above:
            raise NotKnown(
                "the PCIe tree shows no bridge above it", "the host's own tree: a virtual machine's is made up"
            )
        what = f"sends packets with {own} bytes of data, where it and the bridges above can {most}"
        return Fault(part.place, what, evidence, severity="note")


def _above(host: Host, device: Device) -> list[Device]:
    """The bridges above a device, from it on."""
    by_address = {each.address: each for each in devices(host, "bridge")}
    chain = list[Device]()
    while device.above in by_address and len(chain) <= len(by_address):
        device = by_address[device.above]
        chain.append(device)
    return chain
