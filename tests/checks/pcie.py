"""The healthy host on disk, of which a test changes files of one device."""

from __future__ import annotations

from tests.facts.healthy.described import gpu_address
from tests.facts.healthy.infiniband import address
from tests.facts.healthy.pcie import bridge_address
from tests.facts.machine import healthy

CARD = f"/sys/devices/pci0003:00/{address(3)}"
BRIDGE = f"/sys/devices/pci0103:00/{bridge_address(3)}"
GPU = f"{BRIDGE}/{gpu_address(3)}"
BUS = "/sys/bus/pci/devices"


def judged(check, folder, changed=(), without=()):
    """What a check says of the healthy host with these files instead, and without those."""
    machine = healthy().without(*without)
    machine.files |= dict(changed)
    (said,) = check.judge_all([machine.host(folder)]).values()
    return said


def no_devices():
    """Paths of every GPU and card of the bus, to be taken away."""
    return tuple(f"{BUS}/{place(number)}" for number in range(8) for place in (gpu_address, address))
