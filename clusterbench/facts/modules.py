from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

FOLDER = "/sys/module"
PEERS = "/sys/kernel/mm/memory_peers"
DRIVER = "/proc/driver/nvidia/version"
PARAMETERS = "/proc/driver/nvidia/params"
KERNEL = "/proc/sys/kernel/osrelease"
_NAMES = (
    *("nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "efa_nv_peermem", "gdrdrv", "nvidia_fs", "amdgpu"),
    *("ib_uverbs", "rdma_cm", "rdma_ucm", "mlx4_ib", "mlx5_core", "mlx5_ib", "bnxt_re", "irdma", "hfi1"),
    *("efa", "erdma", "smc"),
)


@dataclass(frozen=True, kw_only=True)
class Modules(Facts):
    """Kernel modules that GPUs and RDMA need.

    Attributes
    ----------
    loaded
        Version of each that is loaded, empty where it has none; None where the kernel's list cannot be seen.
    peer_memory
        What has registered with MLNX_OFED to give RDMA a GPU's memory: ``nv_mem``, ``nv_mem_nc``.
    nvidia_version, nvidia_is_open
        Of NVIDIA's kernel module; the open one calls itself so.
    nvidia_registry
        Settings of that module: ``PeerMappingOverride=1;``.
    kernel
        ``6.8.0-45-generic``.
    """

    loaded: Mapping[str, str] | None
    peer_memory: tuple[str, ...]
    nvidia_version: str | None
    nvidia_is_open: bool | None
    nvidia_registry: str | None
    kernel: str | None

    @classmethod
    def read(cls, files: Files) -> Self:
        there = set(files.names(FOLDER))
        loaded = {name: files.text(f"{FOLDER}/{name}/version", optional=True) or "" for name in _NAMES if name in there}
        driver = files.text(DRIVER, optional="nvidia" not in there) or ""
        version = re.search(r"\s(\d+(?:\.\d+)+)\s", driver)
        registry = re.search(r'^RegistryDwords: "(.*)"', files.text(PARAMETERS, optional=True) or "", re.MULTILINE)
        return cls(
            loaded=loaded if there else None,
            peer_memory=tuple(files.names(PEERS)),
            nvidia_version=version[1] if version else None,
            nvidia_is_open="Open Kernel Module" in driver if version else None,
            nvidia_registry=registry[1] if registry else None,
            kernel=files.text(KERNEL),
            unread=files.unread,
        )
