"""Eight GPUs, each below a bridge, and eight cards: links at their most, no errors, ACS off, relaxed ordering on."""

from tests.facts.healthy.described import NUM_GPUS, gpu_address
from tests.facts.healthy.infiniband import address
from tests.facts.machine import planted

FOLDER = "/sys/bus/pci/devices"
UPTIME_S = 86_400.25  # as kernel facts plant it


def config(relaxed_ordering=True, acs=0, whole=True, payload=1, most_payload=1):
    """A configuration space: power management, then PCI Express; in the extended part AER, then ACS.

    Payloads are 128 bytes times so many powers of two.
    """
    space = bytearray(4096)
    space[0x06], space[0x34] = 0x10, 0x40
    space[0x40:0x42] = (0x01, 0x60)
    space[0x60:0x62], space[0x64] = (0x10, 0x00), most_payload
    space[0x68] = payload << 5 | (0x10 if relaxed_ordering else 0x00)
    space[0x100:0x104] = (0x140 << 20 | 1 << 16 | 0x01).to_bytes(4, "little")
    space[0x140:0x144] = (1 << 16 | 0x0D).to_bytes(4, "little")
    space[0x146] = acs
    return bytes(space if whole else space[:64])


def bridge_address(number):
    return f"0000:{0x10 + number * 0x11:02x}:01.0"


def errors(correctable=0, nonfatal=0, fatal=0):
    return {
        "aer_dev_correctable": f"RxErr 0\nBadTLP {correctable}\nTOTAL_ERR_COR {correctable}",
        "aer_dev_nonfatal": f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}",
        "aer_dev_fatal": f"Undefined 0\nTOTAL_ERR_FATAL {fatal}",
    }


def link():
    return {
        "current_link_speed": "32.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
        "current_link_width": 16,
        "max_link_width": 16,
    }


def plant(machine):
    def add(folder, place, kind, vendor):
        machine.files |= planted(folder, {"class": kind, "vendor": vendor, **link(), **errors()})
        machine.files[f"{folder}/config"] = config()
        for table in (machine.files, machine.links):  # what others planted of the device
            for path in [path for path in table if path.startswith(f"{FOLDER}/{place}/")]:
                table[folder + path.removeprefix(f"{FOLDER}/{place}")] = table.pop(path)
        machine.links[f"{FOLDER}/{place}"] = f"../../..{folder.removeprefix('/sys')}"

    for number in range(NUM_GPUS):
        card = f"/sys/devices/pci{number:04x}:00/{address(number)}"
        add(card, address(number), "0x020700", "0x15b3")
        machine.files |= planted(card, {"device": "0x1021"})
        machine.files |= planted(f"{card}/infiniband/mlx5_{number}", {"node_type": "1: CA"})
        bridge = f"/sys/devices/pci{number + 0x100:04x}:00/{bridge_address(number)}"
        add(bridge, bridge_address(number), "0x060400", "0x1000")
        add(f"{bridge}/{gpu_address(number)}", gpu_address(number), "0x030200", "0x10de")
        machine.links[f"{bridge}/{gpu_address(number)}/driver"] = "../../../../bus/pci/drivers/nvidia"
