from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

PCI = "/sys/bus/pci/devices"
NODES = "/sys/devices/system/node"
NUMA_MAPS = "/proc/self/numa_maps"
_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True, kw_only=True)
class DeviceFiles(Facts):
    """What of ``/sys`` and ``/dev`` a process sees here: a container may show less than the host has.

    Attributes
    ----------
    num_pci
        Functions in ``/sys/bus/pci/devices``.
    num_nvidia_on_pci
        GPUs of NVIDIA among them.
    nvidia
        Files ``/dev/nvidia0`` ..., with ``nvidiactl`` and ``nvidia-uvm``.
    shows_numa_nodes
        Whether there is ``/sys/devices/system/node``.
    knows_numa
        Whether the kernel tells NUMA nodes apart at all: without CONFIG_NUMA, as WSL's, it has no
        ``/proc/self/numa_maps`` either.
    """

    num_pci: int
    num_nvidia_on_pci: int
    nvidia: tuple[str, ...]
    shows_numa_nodes: bool
    has_kfd: bool
    knows_numa: bool = True

    @classmethod
    def read(cls, files: Files) -> Self:
        addresses = files.names(PCI)
        nvidia = [
            address
            for address in addresses
            if (files.text(f"{PCI}/{address}/class", optional=True) or "").startswith(_DISPLAY)
            and files.text(f"{PCI}/{address}/vendor", optional=True) == _NVIDIA
        ]
        return cls(
            num_pci=len(addresses),
            num_nvidia_on_pci=len(nvidia),
            nvidia=tuple(name for name in files.names("/dev") if re.fullmatch(r"nvidia(\d+|ctl|-uvm)", name)),
            shows_numa_nodes=files.exists(NODES),
            has_kfd=files.exists("/dev/kfd"),
            knows_numa=files.exists(NUMA_MAPS),
            unread=files.unread,
        )
