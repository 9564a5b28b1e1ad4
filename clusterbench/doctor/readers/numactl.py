"""NUMA nodes and their memory, each held against the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import numactl
from clusterbench.words import plural

_LESS, _LEAST_BYTES = 0.9, 4 * 2**30
"""A node with less than this share of the largest node's memory lacks a module, and not what the kernel keeps: one of
eight modules is an eighth. Below so many bytes what the kernel keeps may be a tenth."""


class NumactlHardware(HostText):
    """Nodes with CPUs that have no memory, or less than their siblings: every access goes over to another socket.

    A node without CPUs may be memory of a GPU (Grace Hopper) or of CXL, and is left alone.
    """

    kind = "numactl --hardware"

    def holds(self, text: str) -> bool:
        return numactl.is_numactl(text)

    def read(self, text: str, name: str) -> Said:
        said = numactl.parse(text)
        nodes = [node for node in said.nodes.values() if node.num_cpus]
        if not said.is_whole or not nodes:
            why = (
                f"the text holds {plural(len(said.nodes), 'NUMA node')} of {said.num_available or 'an unknown number'}"
            )
            return Said(not_judged=(NotJudged("numa_memory", (name,), why, "the whole output"),), hosts=(name,))
        if found := tuple(_found(nodes, name)):
            return Said(found=found, hosts=(name,))
        if len(nodes) == 1:
            why = "one NUMA node has no sibling that says how much memory it should have"
            return Said(not_judged=(NotJudged("numa_memory", (name,), why, "dmidecode -t memory"),), hosts=(name,))
        most = max(node.memory_bytes for node in nodes)
        what = f"{plural(len(nodes), 'NUMA node')} with CPUs have equal memory, {most / 2**30:.0f} GiB each"
        return Said(healthy=(Healthy("numa_memory", (name,), what),), hosts=(name,))


def _found(nodes: Sequence[numactl.NumaNode], name: str) -> Iterator[Found]:
    most = max(node.memory_bytes for node in nodes)
    confirm = "numactl --hardware; dmidecode -t memory; ipmitool sel list"
    for node in nodes:
        missing = most - node.memory_bytes
        if node.memory_bytes and (node.memory_bytes >= _LESS * most or missing < _LEAST_BYTES):
            continue
        what = f"{node.num_cpus} CPUs have no memory of their own"
        if node.memory_bytes:
            what = f"has {node.memory_bytes / 2**30:.0f} GiB of memory, and another node {most / 2**30:.0f} GiB"
        fix = "look for a memory module that is missing, broken or switched off by the BIOS: each channel needs one"
        yield Found(
            "numa_memory", "warning", (name,), f"NUMA node {node.number}", what, f"{name}: {node.line}", confirm, fix
        )
