"""What a report of a bug needs to know of a host, and how its devices are joined, as a picture in text.

Of variables only those stand here that are recorded in every run, with secrets taken out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterbench.facts import Host, NotKnown
from clusterbench.facts.nvlinks import GpuLinks, Nvlinks
from clusterbench.host_facts import mapping, mappings
from clusterbench.words import few, listed

_LABEL = 10
_GPU = ("display", "accelerator")
_NVIDIA, _AMD = "10de:", "1002:"


@dataclass(frozen=True)
class _Part:
    """A device of the tree: its line, and bridges from the CPU on."""

    words: str
    numa_node: int
    path: tuple[str, ...]
    is_gpu: bool = False
    is_nic: bool = False
    name: str = ""


def env_text(host: Mapping[str, Any]) -> str:
    """Versions, hardware, variables and the picture of one host of an ``environment.json``."""
    return "\n".join([*_facts(host), "", *picture(host)])


def _facts(host: Mapping[str, Any]) -> Iterator[str]:
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
    yield from (f"{name:<{_LABEL}}{value}" for name, value in rows.items() if value)
    for name, value in mapping(host.get("variables")).items():
        yield f"{'variable':<{_LABEL}}{name}={value}"


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
    parts = list(_parts(host))
    lines = []
    nodes = {int(node["node"]): node for node in mappings(host.get("numa_nodes")) if isinstance(node.get("node"), int)}
    for number in sorted({*nodes, *(part.numa_node for part in parts)}):
        node = nodes.get(number, {})
        cpus = f", CPUs {node['cpus']}" if node.get("cpus") else ""
        lines.append(f"NUMA node {number}{cpus}" if number >= 0 else "no NUMA node told")
        own = [part for part in parts if part.numa_node == number]
        lines += _tree([(part.path, part) for part in own], "")
    return [*lines, *_nvlinks(host), *_rails(parts)] or ["the kernel shows neither NUMA nodes nor PCIe devices here"]


def _tree(entries: Sequence[tuple[tuple[str, ...], _Part]], indent: str) -> Iterator[str]:
    """A bridge with everything behind it; one bridge behind another without a branch stands on its line."""
    groups: dict[str, list[tuple[tuple[str, ...], _Part]]] = defaultdict(list)
    for path, part in entries:
        groups[path[0] if path else ""].append((path[1:], part))
    branches = [(bridge, below) for bridge, below in sorted(groups.items()) if bridge]
    leaves = [part for _, part in groups.get("", [])]
    for number, leaf in enumerate(leaves):
        is_last = number == len(leaves) - 1 and not branches
        yield f"{indent}{'└─' if is_last else '├─'} {leaf.words}"
    for number, (bridge, below) in enumerate(branches):
        names, rest = [bridge], below
        while rest and all(path for path, _ in rest) and len({path[0] for path, _ in rest}) == 1:
            names.append(rest[0][0][0])
            rest = [(path[1:], part) for path, part in rest]
        is_last = number == len(branches) - 1
        yield f"{indent}{'└─' if is_last else '├─'} bridge {' > '.join(names)}"
        yield from _tree(rest, indent + ("   " if is_last else "│  "))


def _parts(host: Mapping[str, Any]) -> Iterator[_Part]:
    gpus = 0
    rates = {str(port.get("device")): str(port.get("rate")) for port in mappings(host.get("infiniband"))}
    for device in mappings(host.get("pcie")):
        kind, names = str(device.get("kind")), [str(name) for name in device.get("names") or ()]
        is_gpu = kind in _GPU and str(device.get("id")).startswith((_NVIDIA, _AMD))
        if kind in _GPU and not is_gpu:
            continue  # the small display of a board's controller
        rdma = [name for name in names if name in rates]
        title = f"GPU {gpus}" if is_gpu else " ".join([kind, *names]) if names else kind
        gpus += is_gpu
        rate = f", {rates[rdma[0]]}" if rdma else ""
        numa = device.get("numa_node")
        yield _Part(
            words=f"{title}  {device.get('address')}{_link(device)}{rate}",
            numa_node=numa if isinstance(numa, int) else -1,
            path=tuple(str(bridge) for bridge in device.get("path") or ()),
            is_gpu=is_gpu,
            is_nic=bool(rdma),
            name=rdma[0] if rdma else title,
        )


def _link(device: Mapping[str, Any]) -> str:
    """What the link could be: what it is now is lower while it idles."""
    width, speed = device.get("most_width"), device.get("most_speed")
    return f", at most x{width} at {speed}" if width and speed else ""


def _nvlinks(host: Mapping[str, Any]) -> list[str]:
    """What NVML says of the NVLinks of each GPU; those that are alike share a line. Nothing where it says nothing."""
    try:
        gpus = Host("", host).of(Nvlinks).gpus or ()
    except NotKnown:
        return []
    alike: dict[str, list[int]] = defaultdict(list)
    for gpu in gpus:
        alike[_links(gpu)].append(gpu.gpu)
    lines = [f"  GPU {', '.join(map(str, numbers))}: {words}" for words, numbers in alike.items()]
    return ["NVLinks, GPUs as NVML counts them", *lines] if any(gpu.up or gpu.down for gpu in gpus) else []


def _links(gpu: GpuLinks) -> str:
    if gpu.error is not None:
        return f"not known: {gpu.error}"
    down = f", {listed('link', gpu.down)} down" if gpu.down else ""
    return f"{len(gpu.up)} up{down}" + (f", NVLink {gpu.version}" if gpu.version else "")


def _rails(parts: Sequence[_Part]) -> list[str]:
    """Each GPU with the RDMA cards that are nearest to it: those that share most bridges with it."""
    nics = [part for part in parts if part.is_nic]
    lines = []
    for gpu in (part for part in parts if part.is_gpu):
        shared = {nic.name: _shared(gpu, nic) for nic in nics}
        most = max(shared.values(), default=0)
        near = [name for name, number in shared.items() if number == most]
        if near and most:
            lines.append(f"  {gpu.name}: {few(near)}")
    return ["nearest RDMA card of each GPU", *lines] if lines else []


def _shared(one: _Part, other: _Part) -> int:
    """Bridges that two devices share, from the CPU on; a host bridge of the same NUMA node alone counts nothing."""
    number = 0
    for mine, its in zip(one.path, other.path, strict=False):
        if mine != its:
            break
        number += 1
    return number
