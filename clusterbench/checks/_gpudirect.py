"""How RDMA devices may reach the memory of NVIDIA GPUs on a host."""

from __future__ import annotations

import re

from clusterbench.checks._training_node import gpu_cards, num_gpus
from clusterbench.facts import Host, NotKnown, known
from clusterbench.facts.infiniband import Infiniband
from clusterbench.facts.modules import DRIVER, FOLDER, KERNEL, PEERS, Modules
from clusterbench.host_facts import mappings

PEER_MODULES = ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem")
LEAST_DRIVER = (515,)
LEAST_KERNEL = (5, 12)
"""NVIDIA's GPU Operator documentation, *GPUDirect RDMA*: open kernel module (515 is the first), kernel 5.12."""


def why_not_needed(host: Host) -> str:
    """Why a host has no GPU whose memory RDMA devices would reach through NVIDIA's driver; empty where it has.

    Raises
    ------
    NotKnown
        If it was not recorded which it has.
    """
    if not any(device.kind != "software" for device in host.of(Infiniband).devices):
        return "no RDMA device here"
    if not num_gpus(host):
        return "no GPU here"
    is_amd = all(str(card.get("id")).startswith("1002:") for card in gpu_cards(host)) and bool(gpu_cards(host))
    return "" if mappings(host.environment.get("gpus")) or not is_amd else "AMD's driver gives its memory itself"


def peer_memory(host: Host) -> str:
    """What is loaded that gives GPU memory to RDMA devices, as NCCL looks for it; empty where nothing is.

    Raises
    ------
    NotKnown
        If the kernel's list of modules cannot be seen.

    Source: NVIDIA/nccl, ``src/transport/net_ib/gdr.cc``.
    """
    modules = host.of(Modules)
    loaded = known(modules, modules.loaded, FOLDER)
    for name in PEER_MODULES:
        if name in loaded:
            return name
    return next((f"{PEERS}/{name}" for name in modules.peer_memory if name in ("nv_mem", "nv_mem_nc")), "")


def why_no_dma_buf(host: Host) -> str:
    """Why GPU memory cannot be registered through DMA-BUF; empty where driver and kernel allow it.

    Raises
    ------
    NotKnown
        If driver or kernel were not read, or the kernel is an old one that may have it all the same.
    """
    modules = host.of(Modules)
    version = known(modules, modules.nvidia_version, DRIVER)
    if not modules.nvidia_is_open:
        return f"NVIDIA's kernel module {version} is the closed one"
    if _numbers(version) < LEAST_DRIVER:
        return f"driver {version} is older than 515"
    kernel = known(modules, modules.kernel, KERNEL)
    if _numbers(kernel) >= LEAST_KERNEL:
        return ""
    if ".el8" in kernel:
        why = f"kernel {kernel} is older than 5.12, and its distribution took later RDMA code into it"
        raise NotKnown(why, "a line 'DMA-BUF is available on GPU device 0' of NCCL_DEBUG=INFO")
    return f"kernel {kernel} is older than 5.12"


def what_was_read(host: Host) -> str:
    """``/proc/driver/nvidia/version: 570.86.15 (open); /proc/sys/kernel/osrelease: 6.8.0-45-generic``"""
    modules = host.of(Modules)
    flavour = {True: "open", False: "closed", None: "unknown"}[modules.nvidia_is_open]
    return f"{DRIVER}: {modules.nvidia_version} ({flavour}); {KERNEL}: {modules.kernel}"


def _numbers(version: str) -> tuple[int, ...]:
    """
    >>> _numbers("6.8.0-45-generic")
    (6, 8)
    """
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
