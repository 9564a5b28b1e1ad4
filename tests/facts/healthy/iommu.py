from tests.facts.healthy.described import NUM_GPUS, gpu_address
from tests.facts.healthy.infiniband import NUM_DEVICES, address
from tests.facts.machine import planted


def plant(machine):
    gpus = [gpu_address(number) for number in range(NUM_GPUS)]
    for number, device in enumerate([*gpus, *(address(number) for number in range(NUM_DEVICES))]):
        card = f"/sys/bus/pci/devices/{device}"
        machine.links[f"{card}/iommu_group"] = f"../../../kernel/iommu_groups/{number}"
        machine.files[f"/sys/kernel/iommu_groups/{number}/type"] = "identity\n"
        if device in gpus:
            machine.files |= planted(card, {"class": "0x030200", "vendor": "0x10de"})
    machine.files |= {
        "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=7a ro quiet iommu=pt intel_iommu=on password=x -- iommu=off\n",
        "/proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
        "/proc/uptime": "86400.25 1000.00\n",
        "/proc/sys/kernel/random/boot_id": "3e4f3c10-0000-4000-8000-000000000001\n",
        "/proc/sys/kernel/pid_max": "4194304\n",
    }
