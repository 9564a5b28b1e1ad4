from __future__ import annotations

import re
from dataclasses import replace

from clusterbench.checks import Fault
from clusterbench.checks._kernel_log import KernelLogCheck, told
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.infiniband import Infiniband
from clusterbench.tools.kernel_log import Event

_LIMIT = re.compile(r"([\d.]+) Gb/s available PCIe bandwidth, limited by (.+?) at (\S+) \(capable of ([\d.]+) Gb/s")


class LimitedPcie(KernelLogCheck):
    """Cards that say at start that something between them and the processor gives less than they can take.

    An error where what is left is below the rates of the card's ports together, which then cannot be reached. A note
    where it is enough, or where the ports' rates are not known: a card of PCIe 5 in a server of PCIe 4, or behind a
    slower switch, says so at every boot and loses nothing that its ports could carry.

    Source: Linux, ``drivers/pci/pci.c``, ``__pcie_print_link_status``.
    """

    number = 111
    question = "Does PCIe give every network card what its ports carry?"
    severity = "error"
    confirm = "dmesg -T | grep 'limited by'; lspci -vv | grep -E 'LnkCap|LnkSta'"
    fix = "reseat the card, use a slot of full width, look at bifurcation and speed in the BIOS"
    kinds = ("pcie_limited",)
    absent = "card that PCIe limits"

    def fault(self, host: Host, event: Event) -> Fault | None:
        limit = _LIMIT.search(event.text)
        if limit is None:
            return None
        left, link, place, most = limit.groups()
        needed = _port_gb(host, event.where.split()[-1])
        what = f"has {float(left):.0f} of {float(most):.0f} Gb/s of PCIe, limited by {link} at {place}"
        fault = told(host, event, what)
        if needed is None or float(left) >= needed:
            return replace(fault, severity="note")
        return replace(fault, what=f"{fault.what}; its ports carry {needed:.0f} Gb/s")


def _port_gb(host: Host, address: str) -> float | None:
    """What the ports of the card at a PCIe address carry together, in Gb/s; None where it is not known."""
    try:
        facts = host.of(Infiniband)
    except NotKnown:
        return None
    names = {device.name for device in facts.devices if device.address == address}
    rates = [(port.rate or "").split()[:1] for port in facts.ports if port.device in names]
    try:
        return sum(float(rate[0]) for rate in rates) if rates and all(rates) else None
    except ValueError:
        return None
