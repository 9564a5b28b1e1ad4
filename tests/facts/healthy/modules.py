from tests.facts.machine import planted

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)  Thu Jan 23"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"


def plant(machine):
    versions = {"nvidia": "570.86.15", "nvidia_peermem": "570.86.15", "gdrdrv": "2.4.4", "mlx5_core": "24.10-0.7.0"}
    machine.files |= planted("/sys/module", {f"{name}/version": version for name, version in versions.items()})
    machine.files |= planted("/sys/module", {"ib_uverbs/refcnt": 8, "mlx5_ib/refcnt": 0})
    machine.files |= planted("/proc/driver/nvidia", {"version": f"{OPEN}\nGCC version:  gcc version 12.3.0"})
    machine.files |= planted("/proc/driver/nvidia", {"params": 'OpenRmEnableUnsupportedGpus: 1\nRegistryDwords: ""'})
    machine.files["/proc/sys/kernel/osrelease"] = "6.8.0-60-generic\n"
