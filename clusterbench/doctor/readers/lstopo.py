"""NUMA nodes and their memory by lstopo, each held against the others."""

from __future__ import annotations

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import lstopo
from clusterbench.words import plural

_LESS, _LEAST_BYTES = 0.9, 4 * 2**30
"""As of numactl: one of eight modules is an eighth, and a small node's kernel keeps a tenth."""
_FIX = "look for a memory module that is missing, broken or switched off by the BIOS: each channel needs one"


class Lstopo(HostText):
    """Nodes with less memory than the others of the host; memory of several kinds differs as built and is let be."""

    kind = "lstopo"

    def holds(self, text: str) -> bool:
        return lstopo.is_lstopo(text)

    def read(self, text: str, name: str) -> Said:
        nodes = lstopo.parse(text)
        if why := _unknown(nodes):
            return Said(not_judged=(NotJudged("numa_memory", (name,), why, "dmidecode -t memory"),), hosts=(name,))
        most = max(node.memory_bytes for node in nodes)
        low = [node for node in nodes if node.memory_bytes < _LESS * most and most - node.memory_bytes >= _LEAST_BYTES]
        if not low:
            what = f"{plural(len(nodes), 'NUMA node')} have equal memory, {most / 2**30:.0f} GiB each"
            return Said(healthy=(Healthy("numa_memory", (name,), what),), hosts=(name,))
        confirm = "numactl --hardware; dmidecode -t memory; ipmitool sel list"
        found = tuple(
            Found(
                "numa_memory",
                "warning",
                (name,),
                f"NUMA node {node.number}",
                what,
                f"{name}: {node.line}",
                confirm,
                _FIX,
            )
            for node in low
            for what in [f"has {node.memory_bytes / 2**30:.0f} GiB of memory, and another node {most / 2**30:.0f} GiB"]
        )
        return Said(found=found, hosts=(name,))


def _unknown(nodes: tuple[lstopo.Node, ...]) -> str:
    if not all(node.is_plain for node in nodes):
        return "not all nodes have CPUs and one kind of memory, and how much the others should have is not known"
    if not any(node.memory_bytes for node in nodes):
        return "the text says no node's memory"
    return "one NUMA node has no sibling that says how much memory it should have" if len(nodes) == 1 else ""
