"""``numactl --hardware``: NUMA nodes with their CPUs and memory.

Source: numactl/numactl, ``numactl.c``. What it calls MB is MiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_AVAILABLE = re.compile(r"available: (\d+) nodes? \([\d,-]+\)")
_CPUS = re.compile(r"node (\d+) cpus:([ \d]*)")
_SIZE = re.compile(r"node (\d+) size: (\d+) MB")
_FREE = re.compile(r"node (\d+) free: \d+ MB")


@dataclass(frozen=True)
class NumaNode:
    """``line`` is the one that says its memory, in bytes of all that the kernel manages there."""

    number: int
    num_cpus: int
    memory_bytes: int
    line: str


@dataclass(frozen=True)
class Numactl:
    """``num_available`` is what the first line says; ``nodes`` are those whose lines are there, by number."""

    num_available: int | None
    nodes: Mapping[int, NumaNode]

    @property
    def is_whole(self) -> bool:
        return self.num_available == len(self.nodes)


def is_numactl(text: str) -> bool:
    """Whether a text is its output, or a part of it that says a node's memory."""
    lines = [line.strip() for line in text.splitlines()]
    return any(map(_AVAILABLE.fullmatch, lines)) or (
        any(map(_SIZE.fullmatch, lines)) and any(map(_FREE.fullmatch, lines))
    )


def parse(text: str) -> Numactl:
    """All nodes whose CPUs and memory are both said."""
    available: int | None = None
    cpus: dict[int, int] = {}
    sizes: dict[int, tuple[int, str]] = {}
    for line in map(str.strip, text.splitlines()):
        if match := _AVAILABLE.fullmatch(line):
            available = int(match[1])
        elif match := _CPUS.fullmatch(line):
            cpus[int(match[1])] = len(match[2].split())
        elif match := _SIZE.fullmatch(line):
            sizes[int(match[1])] = int(match[2]) * 2**20, line
    return Numactl(available, {node: NumaNode(node, cpus[node], *sizes[node]) for node in sorted(cpus.keys() & sizes)})
