"""Each GPU and its card below a PCIe switch of their own: root port, the switch's upper side, and two lower ones."""

from tests.facts.healthy.described import NUM_GPUS, gpu_address
from tests.facts.healthy.infiniband import address
from tests.facts.healthy.pcie import FOLDER, config, errors, link
from tests.facts.machine import planted


def root_port(number):
    return f"0000:{number + 0xA0:02x}:00.0"


def switch(number):
    return f"0000:{number + 0xB0:02x}:00.0"


def folder(number):
    """Of the switch's upper side."""
    return f"/sys/devices/pci{number + 0x200:04x}:00/{root_port(number)}/{switch(number)}"


def change(machine):
    for number in range(NUM_GPUS):
        upper = folder(number)
        lower = [f"{upper}/0000:{number + 0xE0:02x}:0{port}.0" for port in range(2)]
        for place in (upper.rpartition("/")[0], upper, *lower):
            machine.files |= planted(place, {"class": "0x060400", "vendor": "0x1000", **link(), **errors()})
            machine.files[f"{place}/config"] = config()
            machine.links[f"{FOLDER}/{place.rpartition('/')[2]}"] = f"../../..{place.removeprefix('/sys')}"
        for device, port in zip((gpu_address(number), address(number)), lower, strict=True):
            _move(machine, device, f"{port}/{device}".removeprefix("/sys"))


def _move(machine, device, place):
    old = machine.links[f"{FOLDER}/{device}"].removeprefix("../../..")
    for table in (machine.files, machine.links):
        for path in [path for path in table if path.startswith(f"/sys{old}/")]:
            table[f"/sys{place}{path.removeprefix(f'/sys{old}')}"] = table.pop(path)
    for path in [path for path, target in machine.links.items() if target.endswith(old)]:
        machine.links[path] = f"../../..{place}"
    for path in [path for path in machine.links if path == f"/sys{place}/driver"]:
        machine.links[path] = f"../drivers/{machine.links[path].rpartition('/')[2]}"
