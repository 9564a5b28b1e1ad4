"""What checks of PCIe have in common: the devices, and which of them they look at."""

from __future__ import annotations

from dataclasses import replace

from clusterbench.checks import Judged, PartsCheck, Unknown
from clusterbench.facts import Host, NotKnown
from clusterbench.facts.pcie import FOLDER, Device, Pcie


def not_of_a_virtual_function(what: str) -> NotKnown:
    """Why something of a virtual function is not known; alike for all of a host's, so that it is said once."""
    return NotKnown(f"a virtual function does not show {what}", "the host of the virtual machine")


def devices(host: Host, *kinds: str) -> list[Device]:
    """GPUs (``gpu``), RDMA cards (``nic``) and the bridges above them (``bridge``).

    Raises
    ------
    NotKnown
        If the bus was not there to look at.
    """
    found = host.of(Pcie).devices
    if found is None:
        raise NotKnown(f"{FOLDER} is not there", f"a host that shows {FOLDER}")
    return [device for device in found if device.kind in kinds]


class PcieCheck(PartsCheck[Device]):
    """A check of devices of the PCIe bus, which does not judge those that were not looked at."""

    def judge(self, host: Host) -> Judged:
        said = super().judge(host)
        why = host.of(Pcie).unread.get(FOLDER)
        if why is None:
            return said
        rest = Unknown(f"{FOLDER} {why}", "lspci -vvv as root")
        return replace(said, unknown=(*said.unknown, rest), not_applicable="")
