"""``mlc``: NUMA nodes whose processors reach their own memory slower than those of other nodes reach theirs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import mlc
from clusterbench.tools.mlc import Mlc
from clusterbench.words import plural

_NAME = "memory_bandwidth"
_WEAK = 0.9
"""Of the other nodes' bandwidth: nodes alike differ by a few percent, and a module fewer of eight costs an eighth."""
_ONE_WAY = 0.7
"""Of the bandwidth the other way between two nodes."""
_CONFIRM = "mlc --bandwidth_matrix on an idle host; dmidecode -t memory"
_MODULES = "as many modules of one speed on every channel; reseat or replace the one that dmidecode does not list"


class MlcMatrix(HostText):
    """Local bandwidth, node by node. Two sockets are held against each other; one alone is not judged."""

    kind = "mlc"

    def holds(self, text: str) -> bool:
        return mlc.is_mlc(text)

    def read(self, text: str, name: str) -> Said:
        said = mlc.parse(text)
        local = {node: rate for (node, memory), rate in said.bytes_per_s.items() if node == memory}
        found = (*_weak(said, local, name), *_one_way(said, name))
        why = ""
        if not said.is_whole:
            why = "a row of the matrix is cut"
        elif not said.bytes_per_s:
            why = "the text has no matrix of bandwidth"
        elif len(local) < 2:
            why = "one NUMA node has no sibling that says how fast it should be"
        unknown = (NotJudged(_NAME, (name,), why, "mlc --bandwidth_matrix, whole"),) if why else ()
        rates = sorted(local.values()) or [0.0]
        span = f"{rates[0] / 1e9:.0f} to {rates[-1] / 1e9:.0f} GB/s"
        what = f"{plural(len(local), 'NUMA node')} at {span} to their own memory"
        healthy = () if found or unknown else (Healthy(_NAME, (name,), what),)
        return Said(found=found, healthy=healthy, not_judged=unknown, hosts=(name,))


def _weak(said: Mlc, local: dict[int, float], name: str) -> Iterator[Found]:
    for node, rate in local.items():
        others = [other for sibling, other in local.items() if sibling != node]
        if others and rate < _WEAK * median(others):
            usual = f"{median(others) / 1e9:.1f} GB/s"
            what = f"reads its own memory at {rate / 1e9:.1f} GB/s, and its siblings theirs at {usual}"
            evidence = f"{name}: {said.lines[node]}"
            yield Found(_NAME, "warning", (name,), f"NUMA node {node}", what, evidence, _CONFIRM, _MODULES)


def _one_way(said: Mlc, name: str) -> Iterator[Found]:
    """Nodes that read each other's memory slower than the other way round."""
    for (node, memory), rate in said.bytes_per_s.items():
        back = said.bytes_per_s.get((memory, node), 0.0)
        if node != memory and rate < _ONE_WAY * back:
            what = f"reads the memory of node {memory} at {rate / 1e9:.1f} GB/s, and is read from there at "
            what += f"{back / 1e9:.1f} GB/s"
            fix = "the links between sockets, and their memory, in the BIOS's log; other work on the host"
            evidence = f"{name}: {said.lines[node]}"
            yield Found(_NAME, "warning", (name,), f"NUMA node {node}", what, evidence, _CONFIRM, fix)
