"""``nvidia-smi topo -m``: NVLinks of each GPU, held against the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import nvidia_topo
from clusterbench.tools.nvidia_topo import Topology
from clusterbench.words import few, plural

_HEADER = re.compile(r"(?m)^\s*GPU0\s.*\bCPU Affinity\b")
_ROW = re.compile(r"(?m)^\s*GPU\d+\s.*\b(?:NV\d+|SYS|NODE|PHB|PXB|PIX)\b")
_FEWEST, _MINORITY = 4, 0.25


class NvidiaTopoMatrix(HostText):
    """GPUs with fewer NVLinks than most GPUs of the host have.

    Where more than a quarter have fewer, the host is built of several kinds, or bridges join only some. Distances over
    PCIe are how a board was made: none is a fault by itself. GPUs that have every network card on another NUMA node are
    not judged, since a virtual machine's tree is made up.
    """

    kind = "nvidia-smi topo -m"

    def holds(self, text: str) -> bool:
        return _HEADER.search(text) is not None and _ROW.search(text) is not None

    def read(self, text: str, name: str) -> Said:
        try:
            topology = _topology(text)
        except ToolError as error:
            return Said(not_judged=(NotJudged("nvlink_pairs", (name,), str(error), "the whole matrix"),), hosts=(name,))
        said = _of_links(topology, text, name)
        return replace(said, not_judged=(*said.not_judged, *_far(topology, name)))


def _of_links(topology: Topology, text: str, name: str) -> Said:
    links = {gpu: sum(topology.links(gpu, peer) for peer in topology.gpus) for gpu in topology.gpus}
    most = max(Counter(links.values()).items(), key=lambda item: (item[1], item[0]))[0]
    fewer = [gpu for gpu, number in links.items() if number < most]
    if most and len(fewer) == 0 and len({*links.values()}) == 1 and len(links) > 1:
        what = f"{plural(len(links), 'GPU')} with equally many NVLinks to the others"
        return Said(healthy=(Healthy("nvlink_pairs", (name,), what),), hosts=(name,))
    usual = _usual(topology)
    if usual and most and len(links) >= _FEWEST and len(fewer) <= max(2, _MINORITY * len(links)) < len(links):
        return Said(found=tuple(_found(topology, usual, text, name)), hosts=(name,))
    why = "no NVLink joins these GPUs"
    if any(links.values()):
        why = f"GPUs have {few([*links.values()], 8)} NVLinks: they may be of several kinds"
    takes = "nvidia-smi -q for the products; copies between the GPUs (p2pBandwidthLatencyTest, nvbandwidth)"
    return Said(not_judged=(NotJudged("nvlink_pairs", (name,), why, takes),), hosts=(name,))


def _far(topology: Topology, name: str) -> Iterator[NotJudged]:
    far = [gpu for gpu in topology.gpus if {topology.paths[gpu][nic] for nic in topology.nics} == {"SYS"}]
    if far:
        why = f"{few(far)} {'has' if len(far) == 1 else 'have'} every network card on another NUMA node (SYS)"
        takes = "clusterbench doctor --quick on the host; in a virtual machine the tree is made up (NCCL_TOPO_FILE)"
        yield NotJudged("gpu_nic_distance", (name,), why, takes)


def _topology(text: str) -> Topology:
    try:
        return nvidia_topo.parse(text)
    except ToolError:
        return nvidia_topo.parse_gpus(text)


def _usual(topology: Topology) -> int:
    """The NVLinks of most pairs; 0 where most have none, as with bridges between two."""
    kinds = Counter(topology.links(a, b) for a in topology.gpus for b in topology.gpus if a != b)
    return max(kinds.items(), key=lambda item: (item[1], item[0]))[0] if kinds else 0


def _found(topology: Topology, usual: int, text: str, name: str) -> Iterator[Found]:
    """Pairs with fewer links than most; of a GPU that has fewer to all others, the GPU."""
    pairs = [(a, b) for a in topology.gpus for b in topology.gpus if a < b and topology.links(a, b) < usual]
    common = [gpu for gpu in topology.gpus if len(pairs) > 1 and all(gpu in pair for pair in pairs)]
    for pair in pairs[:1] if common else pairs:
        where = f"{common[0]} and all others" if len(common) == 1 else " and ".join(pair)
        own = topology.paths[pair[0]][pair[1]]
        what = f"are joined by {own}, and most pairs by NV{usual}"
        line = next(line for line in text.splitlines() if line.split()[:1] == [pair[0]] and "X" in line.split())
        confirm = "nvidia-smi nvlink -s"
        fix = "reset the GPU; restart the fabric manager; look for Xid 74 in the kernel's log"
        yield Found("nvlink_pairs", "error", (name,), where, what, f"{name}: {line.strip()}", confirm, fix)
