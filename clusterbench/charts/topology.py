from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.charts import IN_OBSERVATIONS, Chart, Section, curves_note
from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import GRID, INK, LETTERS, MUTED, PALETTE, canvas
from clusterbench.run_folder.attempts import host_of
from clusterbench.tools.host_links import TOPOLOGY
from clusterbench.words import Word, few, legible

MOST = 4
_NEARNESS = {"NV": 0.6, "C2C": 0.6, "PIX": 0.42, "PXB": 0.32, "PHB": 0.22, "NODE": 0.12, "SYS": 0.04}
"""Depth of a cell's colour: NVLink, then PCIe by how much lies between."""


@dataclass(frozen=True)
class Joined:
    """How the devices of some hosts are joined, which is the same on all of them."""

    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    paths: Mapping[str, Mapping[str, str]]
    numa_nodes: Mapping[str, str]


class Topology(Chart[list[Joined]]):
    """How the GPUs and network cards of a host reach each other.

    How to read it
    --------------
    Each cell is nvidia-smi's word for the way between two devices: NV18 is 18 NVLinks; PIX one PCIe switch, PXB
    several, PHB the host bridge of a CPU, NODE another bridge of the same NUMA node, SYS the link between CPUs. A
    fuller colour is a shorter way. A GPU wants a network card at PIX or PXB. Behind a name stands its NUMA node. Hosts
    that are alike share a panel; a panel with one host is one that differs.
    """

    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "PIX",
            "How nvidia-smi topo says that two devices are joined: PIX by one PCIe bridge at most, PXB by several, PHB "
            "by way of the CPU's host bridge, NODE across host bridges of one NUMA node, SYS across NUMA nodes, NV by "
            "NVLinks and their number.",
            r"PXB|PHB|NODE|SYS|NV\d+|NV",
        ),
    )
    title: ClassVar[str] = "How devices are joined"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "link_matrix"

    def select(self, reading: Reading) -> list[Joined] | None:
        by_host: dict[str, Joined] = {}
        for history in reading.histories:
            for observation in history.observations:
                for rank, topology in enumerate(TOPOLOGY.readable(observation)):
                    if (matrix := topology.matrix) and matrix.devices:
                        host = host_of(observation, rank)
                        by_host.setdefault(host, Joined((host,), matrix.devices, matrix.paths, matrix.numa_nodes))
        alike: list[Joined] = []
        for host, joined in by_host.items():
            same = [other for other in alike if (other.devices, other.paths) == (joined.devices, joined.paths)]
            for other in same:
                alike[alike.index(other)] = Joined((*other.hosts, host), *_parts(other))
            alike += [] if same else [joined]
        return sorted(alike, key=lambda joined: -len(joined.hosts)) or None

    def draw(self, data: list[Joined]) -> list[Panel]:
        return [_matrix(joined) for joined in data[:MOST]]

    def answer(self, data: list[Joined]) -> str:
        if len(data) == 1:
            return "All hosts join their devices alike." if len(data[0].hosts) > 1 else ""
        odd = ", ".join(host for joined in data[1:] for host in joined.hosts)
        verb = "joins" if sum(len(joined.hosts) for joined in data[1:]) == 1 else "join"
        return f"{odd} {verb} devices in another way than the others."

    def left_out(self, data: list[Joined]) -> str:
        return curves_note(len(data), MOST, "matrices", IN_OBSERVATIONS)


def _parts(joined: Joined) -> tuple[tuple[str, ...], Mapping[str, Mapping[str, str]], Mapping[str, str]]:
    return joined.devices, joined.paths, joined.numa_nodes


def _matrix(joined: Joined) -> Panel:
    from matplotlib.patches import Rectangle

    count = len(joined.devices)
    size = min(9.0, max(3.6, 1.4 + 0.44 * count))
    figure, axes = canvas(few([legible(host) for host in joined.hosts], 1), width=size, height=size)
    for row, device in enumerate(joined.devices):
        for column, other in enumerate(joined.devices):
            kind = joined.paths[device][other]
            depth = 0.0 if kind == "X" else _NEARNESS.get(kind.rstrip("0123456789") if kind[:2] == "NV" else kind, 0.0)
            colour = GRID if kind == "X" else PALETTE[0]
            cell = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, alpha=depth or 0.6, edgecolor="none")
            if depth or kind == "X":
                axes.add_patch(cell)
            if kind != "X":
                axes.text(column, row, legible(kind, 6), ha="center", va="center", fontsize=LETTERS, color=INK)
    names = [legible(name, 12) for name in joined.devices]
    axes.set_xticks(range(count), names, rotation=90)
    axes.set_yticks(range(count), [_with_node(name, joined) for name in joined.devices])
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_ylabel("device, NUMA node", color=MUTED)
    axes.grid(False)
    entries = tuple(
        Entry((device, other, joined.paths[device][other]), area=(column - 0.5, row - 0.5, column + 0.5, row + 0.5))
        for row, device in enumerate(joined.devices)
        for column, other in enumerate(joined.devices)
    )
    return Panel(figure, (Column("device"), Column("other device"), Column("path")), entries)


def _with_node(name: str, joined: Joined) -> str:
    node = joined.numa_nodes.get(name)
    return legible(name, 12) + (f", {legible(node, 6)}" if node else "")
