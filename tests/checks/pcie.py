"""The healthy host on disk, of which a test changes files of one device."""

from __future__ import annotations

from tests.facts.healthy.described import gpu_address
from tests.facts.healthy.infiniband import address
from tests.facts.healthy.pcie import bridge_address
from tests.facts.machine import healthy, planted

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


def with_functions(number, is_virtual):
    """The healthy host with so many more RDMA functions at low addresses, and a card with faults at a high one.

    Virtual ones are linked with their card, as ``drivers/pci/iov.c`` does.
    """
    machine = healthy()
    link = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": 16}
    now = {"current_link_speed": "Unknown" if is_virtual else "32.0 GT/s PCIe", "current_link_width": 16}
    sick = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": 4, "aer_dev_fatal": "TOTAL_ERR_FATAL 7"}
    functions = {f"0000:{1 + n // 200:02x}:{n % 200 // 8:02x}.{n % 8}": now for n in range(number)}
    for place, files in {**functions, "0000:dd:00.0": sick}.items():
        kind = {"class": "0x020700", "infiniband/mlx5_x/node_type": "1: CA", "aer_dev_correctable": "TOTAL_ERR_COR 0"}
        folder = f"/sys/devices/pci{place[:7]}/{place}"
        machine.files |= planted(folder, kind | link | files)
        machine.links[f"{BUS}/{place}"] = f"../../..{folder.removeprefix('/sys')}"
        if is_virtual and files is now:
            machine.links[f"{folder}/physfn"] = "../../pci0001:00/0001:00:00.0"
    return machine
