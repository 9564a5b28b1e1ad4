"""Eight MI300X in the place of the NVIDIA GPUs."""

from tests.facts.healthy import gpus
from tests.facts.healthy.described import NUM_GPUS, gpu_address
from tests.facts.healthy.pcie import bridge_address


def folder(number):
    return f"/sys/devices/pci{number + 0x100:04x}:00/{bridge_address(number)}/{gpu_address(number)}"


def change(machine):
    machine.without("nvlinks", "nvidia", "/proc/driver/nvidia", "/sys/module/nvidia", "/dev/nvidia", "/dev/gdrdrv")
    machine.give(gpus.facts(gpus=(), on_bus=(), driver_version=None))
    machine.environment["gpus"] = []
    for card in machine.environment["pcie"]:
        if card["kind"] == "display":
            card |= {"kind": "accelerator", "id": "1002:74a1"}
    for number in range(NUM_GPUS):
        machine.files |= {f"{folder(number)}/vendor": "0x1002\n", f"{folder(number)}/class": "0x120000\n"}
        machine.links[f"{folder(number)}/driver"] = "../../../../bus/pci/drivers/amdgpu"
