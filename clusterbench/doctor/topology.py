"""How the devices of a host are joined: NUMA nodes, PCIe bridges with what is behind them, NVLinks, and rails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clusterbench.facts import Host, NotKnown
from clusterbench.facts.nvlinks import GpuLinks, Nvlinks
from clusterbench.host_facts import mappings
from clusterbench.words import listed

_GPU = ("display", "accelerator")
_NVIDIA, _AMD = "10de:", "1002:"

Kind = Literal["gpu", "nic", "other"]
"""A GPU, an RDMA card, or anything else: disks, and cards without RDMA."""


@dataclass(frozen=True)
class Device:
    """One device: what it is called, where it is, and what is known of its link.

    Attributes
    ----------
    path
        The bridges above it, from the CPU on.
    name
        Of an RDMA card, as verbs call it; else the title.
    """

    kind: Kind
    title: str
    address: str
    link: str
    numa_node: int
    path: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class Branch:
    """What is behind ``bridges``, of which each is behind the one before it; behind none stand those of a NUMA node."""

    bridges: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node, or what the kernel tells no node of."""

    title: str
    below: Branch


@dataclass(frozen=True)
class AlikeLinks:
    """GPUs, as NVML counts them, whose NVLinks are alike; ``is_whole`` where none is down and all are known."""

    gpus: tuple[int, ...]
    said: str
    is_whole: bool


@dataclass(frozen=True)
class Topology:
    """All of it; ``rails`` has for each GPU the RDMA cards that are nearest to it: those that share most bridges."""

    nodes: tuple[NumaNode, ...] = ()
    nvlinks: tuple[AlikeLinks, ...] = ()
    rails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.nvlinks)


def topology(host: Mapping[str, Any]) -> Topology:
    """What one host of an ``environment.json`` tells."""
    devices = list(_devices(host))
    return Topology(tuple(_nodes(host, devices)), tuple(_nvlinks(host)), dict(_rails(devices)))


def _nodes(host: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[NumaNode]:
    nodes = {int(node["node"]): node for node in mappings(host.get("numa_nodes")) if isinstance(node.get("node"), int)}
    for number in sorted({*nodes, *(device.numa_node for device in devices)}):
        node = nodes.get(number, {})
        cpus = f", CPUs {node['cpus']}" if node.get("cpus") else ""
        title = f"NUMA node {number}{cpus}" if number >= 0 else "no NUMA node told"
        yield NumaNode(title, _branch((), [(each.path, each) for each in devices if each.numa_node == number]))


def _branch(bridges: tuple[str, ...], entries: Sequence[tuple[tuple[str, ...], Device]]) -> Branch:
    """``entries`` are the devices behind these bridges, each with the bridges that are still above it."""
    groups: dict[str, list[tuple[tuple[str, ...], Device]]] = defaultdict(list)
    for path, device in entries:
        groups[path[0] if path else ""].append((path[1:], device))
    devices = tuple(device for _, device in groups.pop("", []))
    return Branch(bridges, devices, tuple(_unbranched(bridge, below) for bridge, below in sorted(groups.items())))


def _unbranched(bridge: str, below: Sequence[tuple[tuple[str, ...], Device]]) -> Branch:
    """From this bridge to the first one behind which ways part."""
    names = [bridge]
    while all(path for path, _ in below) and len({path[0] for path, _ in below}) == 1:
        names.append(below[0][0][0])
        below = [(path[1:], device) for path, device in below]
    return _branch(tuple(names), below)


def _devices(host: Mapping[str, Any]) -> Iterator[Device]:
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
        numa = device.get("numa_node")
        yield Device(
            kind="gpu" if is_gpu else "nic" if rdma else "other",
            title=title,
            address=str(device.get("address")),
            link=", ".join([*_link(device), *(rates[name] for name in rdma[:1])]),
            numa_node=numa if isinstance(numa, int) else -1,
            path=tuple(str(bridge) for bridge in device.get("path") or ()),
            name=rdma[0] if rdma else title,
        )


def _link(device: Mapping[str, Any]) -> Iterator[str]:
    """What the link could be: what it is now is lower while it idles."""
    width, speed = device.get("most_width"), device.get("most_speed")
    if width and speed:
        yield f"at most x{width} at {speed}"


def _nvlinks(host: Mapping[str, Any]) -> Iterator[AlikeLinks]:
    """What NVML says of the NVLinks of each GPU; nothing where it says nothing."""
    try:
        gpus = Host("", host).of(Nvlinks).gpus or ()
    except NotKnown:
        return
    if not any(gpu.up or gpu.down for gpu in gpus):
        return
    alike: dict[str, list[GpuLinks]] = defaultdict(list)
    for gpu in gpus:
        alike[_links(gpu)].append(gpu)
    for said, same in alike.items():
        yield AlikeLinks(tuple(gpu.gpu for gpu in same), said, not (same[0].down or same[0].error))


def _links(gpu: GpuLinks) -> str:
    if gpu.error is not None:
        return f"not known: {gpu.error}"
    down = f", {listed('link', gpu.down)} down" if gpu.down else ""
    return f"{len(gpu.up)} up{down}" + (f", NVLink {gpu.version}" if gpu.version else "")


def _rails(devices: Sequence[Device]) -> Iterator[tuple[str, tuple[str, ...]]]:
    nics = [device for device in devices if device.kind == "nic"]
    for gpu in (device for device in devices if device.kind == "gpu"):
        shared = {nic.name: _shared(gpu, nic) for nic in nics}
        most = max(shared.values(), default=0)
        if most:
            yield gpu.title, tuple(name for name, number in shared.items() if number == most)


def _shared(one: Device, other: Device) -> int:
    """Bridges that two devices share, from the CPU on; a host bridge of the same NUMA node alone counts nothing."""
    number = 0
    for mine, its in zip(one.path, other.path, strict=False):
        if mine != its:
            break
        number += 1
    return number
