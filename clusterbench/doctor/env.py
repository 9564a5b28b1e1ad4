"""What a report of a bug needs to know of a host, and how its devices are joined, as a picture in text.

Of variables only those stand here that are recorded in every run, with secrets taken out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterbench.doctor.topology import Branch, Device, topology
from clusterbench.host_facts import mapping, mappings
from clusterbench.words import few

_LABEL = 10
NVLINKS, RAILS = "NVLinks, GPUs as NVML counts them", "nearest RDMA card of each GPU"
NOTHING_SHOWN = "the kernel shows neither NUMA nodes nor PCIe devices here"


def env_text(host: Mapping[str, Any]) -> str:
    """Versions, hardware, variables and the picture of one host of an ``environment.json``."""
    rows = [*facts(host), *(("variable", f"{name}={value}") for name, value in variables(host).items())]
    return "\n".join([*(f"{name:<{_LABEL}}{value}" for name, value in rows), "", *picture(host)])


def variables(host: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recorded ones by name, without secrets."""
    return mapping(host.get("variables"))


def facts(host: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Versions and hardware, each by its name; what is not known is left out."""
    packages = {name: version for name, version in mapping(host.get("packages")).items() if version}
    gpus = mappings(host.get("gpus"))
    drivers = sorted({str(gpu["driver_version"]) for gpu in gpus if gpu.get("driver_version")})
    memory = host.get("memory_bytes")
    rows = {
        "host": host.get("hostname"),
        "system": f"{host.get('os')}, kernel {host.get('kernel')}",
        "python": f"{host.get('python')}; " + ", ".join(f"{name} {version}" for name, version in packages.items()),
        "cpu": f"{host.get('cpu_model')}: {host.get('num_cores')} cores, {host.get('num_usable_cpus')} CPUs usable",
        "memory": f"{memory / 2**30:.0f} GiB" if isinstance(memory, int) else None,
        "gpus": _gpu_words(gpus) or host.get("gpus_reason") or "none",
        "driver": ", ".join(drivers),
        "network": ", ".join(_interfaces(mappings(host.get("network")))),
        "rdma": ", ".join(_ports(mappings(host.get("infiniband")))) or "none",
        "mpi": mapping(host.get("mpi")).get("library"),
    }
    return [(name, str(value)) for name, value in rows.items() if value]


def _gpu_words(gpus: Sequence[Mapping[str, Any]]) -> str:
    names = [str(gpu.get("name")) for gpu in gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _interfaces(interfaces: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for interface in interfaces:
        if interface.get("physical"):
            speed = interface.get("speed_bits_per_s")
            words = [f"{speed / 1e9:g} Gb/s"] if isinstance(speed, (int, float)) else []
            words += [f"MTU {interface.get('mtu_bytes')}", *([] if interface.get("is_up") else ["down"])]
            yield f"{interface.get('name')} ({', '.join(words)})"


def _ports(ports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for port in ports:
        state = str(port.get("state")).rpartition(": ")[2]
        yield f"{port.get('device')} port {port.get('port')} ({port.get('rate')}, {port.get('link_layer')}, {state})"


def picture(host: Mapping[str, Any]) -> list[str]:
    """NUMA nodes, below each its PCIe bridges with what is behind them: GPUs, network cards, disks; NVLinks; rails."""
    shown = topology(host)
    if not shown:
        return [NOTHING_SHOWN]
    lines = [line for node in shown.nodes for line in (node.title, *_tree(node.below, ""))]
    if shown.nvlinks:
        lines.append(NVLINKS)
    lines += (f"  GPU {', '.join(map(str, links.gpus))}: {links.said}" for links in shown.nvlinks)
    if shown.rails:
        lines.append(RAILS)
    return [*lines, *(f"  {gpu}: {few(cards)}" for gpu, cards in shown.rails.items())]


def _tree(branch: Branch, indent: str) -> Iterator[str]:
    """Everything below a branch; one bridge behind another without a branch stands on its line."""
    below: list[Device | Branch] = [*branch.devices, *branch.branches]
    for number, each in enumerate(below):
        is_last = number == len(below) - 1
        start = f"{indent}{'└─' if is_last else '├─'}"
        if isinstance(each, Device):
            yield f"{start} {each.title}  {each.address}{f', {each.link}' if each.link else ''}"
        else:
            yield f"{start} bridge {' > '.join(each.bridges)}"
            yield from _tree(each, indent + ("   " if is_last else "│  "))
