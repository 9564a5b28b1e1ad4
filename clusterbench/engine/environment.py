"""What this host is: the part of ``environment.json`` that one agent can see, and what a worker adds.

:func:`host_environment` imports no torch and initialises nothing; ``python -m clusterbench.facts`` prints it.
:func:`torch_environment` is for workers: it says what was really loaded, which need not be what is installed
(``LD_PRELOAD``, ``LD_LIBRARY_PATH``, another NCCL on the path). Everything can go into JSON; what cannot be known is
null.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

import psutil

from clusterbench.engine.telemetry import list_gpus
from clusterbench.run_folder.redaction import redacted_value

PREFIXES = (
    *("NCCL_", "GLOO_", "UCX_", "FI_"),
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "NVIDIA_", "OMP_", "MKL_"),
    *("TORCH_", "PYTORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
)
NAMES = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""Variables that are recorded; no other ever is, so that a run folder can be shared."""

_PACKAGES = (
    "clusterbench",
    "torch",
    "numpy",
    "mpi4py",
    "nvidia-ml-py",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "triton",
    "deepspeed",
    "torchtitan",
)


def host_environment(root: Path = Path("/")) -> dict[str, Any]:
    """Hardware, system and installed versions of this host.

    ``root`` is where ``/sys``, ``/proc`` and ``/etc`` are looked for, for tests.
    """
    gpus = list_gpus()
    return {
        "hostname": socket.gethostname(),
        "cpu_model": _cpu_model(root),
        "num_cores": psutil.cpu_count(logical=False),
        "num_logical_cpus": psutil.cpu_count(),
        "num_usable_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "os": _os_name(root),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "mpi": mpi_version(),
        "gpus": [asdict(gpu) for gpu in gpus],
        "gpus_reason": gpus.reason,
        "network": network_interfaces(root),
        "infiniband": infiniband_ports(root),
        "numa_nodes": numa_nodes(root),
        "pcie": pcie_devices(root),
        "variables": recorded_variables(os.environ),
    }


def torch_environment() -> dict[str, Any]:
    """What a worker really loaded. Call it after the device was chosen: naming it may initialise CUDA."""
    import torch
    import torch.distributed as dist

    nccl = None
    # The version of the library in memory: `LD_PRELOAD=.../libnccl.so.2` changes it, the package's metadata does not.
    if dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "nccl_path": mapped_library("libnccl"),
        "mpi_path": mapped_library("libmpi"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu_model(Path("/")),
        "num_threads": torch.get_num_threads(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
    }


def mpi_version() -> dict[str, str] | None:
    """The MPI this process runs on, if mpi4py was imported here; null otherwise, since importing it would start MPI."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return None
    major, minor = mpi.Get_version()
    library = mpi.Get_library_version().replace("\0", "").strip()
    return {"standard": f"{major}.{minor}", "library": library.splitlines()[0] if library else ""}


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that change how a run behaves, sorted; that a secret was set is said, and not its value.

    >>> recorded_variables({"NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "NCCL_NET_AUTH": "x", "HOME": "/root"})
    {'NCCL_DEBUG': 'INFO', 'NCCL_NET_AUTH': '[removed]'}
    """
    return {
        name: redacted_value(name, value)
        for name, value in sorted(environment.items())
        if name.startswith(PREFIXES) or name in NAMES
    }


def mapped_library(name: str, maps: Path = Path("/proc/self/maps")) -> str | None:
    """Path of the library that is mapped into this process and whose file name begins so, such as ``libnccl``."""
    for line in (_read(maps) or "").splitlines():
        # 7f5c-7f5d r-xp 00000000 fe:01 4711    /usr/lib/libnccl.so.2.27.3 (deleted)
        fields = line.split(maxsplit=5)
        path = fields[5].removesuffix(" (deleted)") if len(fields) == 6 else ""
        if re.match(rf"{re.escape(name)}[.\-\d]*so\b", path.rsplit("/", 1)[-1]):
            return path
    return None


def numa_nodes(root: Path = Path("/")) -> list[dict[str, Any]] | None:
    """NUMA nodes with their CPUs, as the kernel writes them (``0-31,64-95``), and memory; null if it lists none."""
    nodes = sorted(root.glob("sys/devices/system/node/node[0-9]*"), key=lambda path: int(path.name[4:]))
    return [
        {"node": int(path.name[4:]), "cpus": _read(path / "cpulist"), "memory_bytes": _node_memory(path)}
        for path in nodes
    ] or None


_PCI_CLASSES = {"0x03": "display", "0x02": "network", "0x0106": "sata", "0x0108": "nvme", "0x12": "accelerator"}


def pcie_devices(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Cards on PCIe that train or carry data, with the switches between each and its CPU.

    ``path`` holds the addresses of root port and switches from the CPU on; two devices that share more of it are nearer
    to each other. ``speed`` and ``width`` are what the link runs at, beside the most it could.
    """
    devices = []
    for link in sorted(root.glob("sys/bus/pci/devices/*")):
        number = _read(link / "class") or ""
        kind = next((kind for start, kind in _PCI_CLASSES.items() if number.startswith(start)), None)
        if kind is None:
            continue
        above = [part for part in link.resolve().parts[:-1] if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:.*", part)]
        devices.append(
            {
                "address": link.name,
                "kind": kind,
                "id": f"{(_read(link / 'vendor') or '')[2:]}:{(_read(link / 'device') or '')[2:]}",
                "names": sorted(
                    path.name for part in ("net", "infiniband", "nvme") for path in (link / part).glob("*")
                ),
                "numa_node": _integer(_read(link / "numa_node")),
                "path": above,
                "speed": _read(link / "current_link_speed"),
                "most_speed": _read(link / "max_link_speed"),
                "width": _integer(_read(link / "current_link_width")),
                "most_width": _integer(_read(link / "max_link_width")),
            }
        )
    return devices


def infiniband_ports(root: Path = Path("/")) -> list[dict[str, Any]]:
    """InfiniBand and RoCE ports, state and rate in the kernel's words (``4: ACTIVE``, ``400 Gb/sec (4X NDR)``)."""
    return [
        {
            "device": port.parts[-3],
            "port": int(port.name),
            "state": _read(port / "state"),
            "physical_state": _read(port / "phys_state"),
            "rate": _read(port / "rate"),
            "bits_per_s": _rate(_read(port / "rate")),
            "link_layer": _read(port / "link_layer"),
            "firmware": _read(port.parents[1] / "fw_ver"),
            "numa_node": _integer(_read(port.parents[1] / "device/numa_node")),
        }
        for port in sorted(root.glob("sys/class/infiniband/*/ports/[0-9]*"))
    ]


def network_interfaces(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Interfaces, loopback included: on one machine it carries the test.

    ``addresses`` have the length of their prefix (``10.77.0.1/24``, ``fd00::1/64``), of interfaces that are up, without
    those that hold for one link only. ``physical`` ones belong to a device, unlike loopback, bridges and what
    containers make.
    """
    addresses = psutil.net_if_addrs()
    return [
        {
            "name": name,
            "is_up": stats.isup,
            "physical": (root / "sys/class/net" / name / "device").exists(),
            # psutil gives 0 where the driver tells no speed (virtio, loopback)
            "speed_bits_per_s": stats.speed * 10**6 or None,
            "mtu_bytes": stats.mtu,
            "addresses": [written for each in addresses.get(name, ()) if stats.isup and (written := _address(each))],
        }
        for name, stats in sorted(psutil.net_if_stats().items())
    ]


def _address(found: Any) -> str:
    """An address as psutil gives it; empty where it is none that other hosts could reach, such as ``fe80::1%eth0``."""
    if found.family == socket.AF_INET:
        return str(ip_interface(f"{found.address}/{found.netmask or 32}"))
    if found.family != socket.AF_INET6 or ip_address(found.address.partition("%")[0]).is_link_local:
        return ""
    length = bin(int(ip_address(found.netmask))).count("1") if found.netmask else 128
    return str(ip_interface(f"{found.address}/{length}"))


def _cpu_model(root: Path) -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine() or None  # Arm has no model name


def _os_name(root: Path) -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', _read(root / "etc/os-release") or "", re.MULTILINE)
    return match[1] if match else None


def _node_memory(path: Path) -> int | None:
    match = re.search(r"MemTotal:\s*(\d+) kB", _read(path / "meminfo") or "")
    return int(match[1]) * 1024 if match else None


def _rate(text: str | None) -> float | None:
    match = re.match(r"([\d.]+) Gb/sec", text or "")
    return float(match[1]) * 1e9 if match else None


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    # Files of /sys exist and still refuse: a port that is down, a device without a NUMA node, a container.
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
