"""``lstopo``'s text: NUMA nodes and their memory, in the tree of packages, caches and cores.

Source: open-mpi/hwloc, ``utils/lstopo/lstopo-text.c`` and ``tests/hwloc``: ``NUMANode L#0 (P#0 503GB)``, from 3.0 on
``503GiB``, with ``-v`` ``(P#0 local=503GiB total=503GiB)``, with ``-p`` ``NUMANode P#0 (503GB)``. Both are powers of 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MACHINE = re.compile(
    r"(?m)^ *Machine (?:P#0 |L#0 )?\((?:P#0 )?(?:\d+ ?[KMGT]i?B total|\d+ ?[KMGT]i?B|total=\d+[KMGT]i?B)"
)
_NODE = re.compile(
    r"(?P<indent> *)(?:\w+ L?#?\d* \+ )?NUMANode(?P<tier>\([\w-]+\))? "
    r"(?:L#\d+ \(P#(?P<number>\d+)|P#(?P<physical>\d+) \()"
    r"(?: ?(?:local=)?(?P<memory>\d+) ?(?P<unit>[KMGT])i?B)?.*"
)
_CPU = re.compile(r"\bPU (?:L#|P#)\d")
_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Node:
    """``memory_bytes`` is 0 where none is printed; ``is_plain`` where it is all the memory of its place in the tree.

    Memory of a GPU, of CXL or on the package has a name, stands beside another node, or has no CPUs.
    """

    number: int
    memory_bytes: int
    line: str
    is_plain: bool


def is_lstopo(text: str) -> bool:
    return _MACHINE.search(text) is not None and "NUMANode" in text


def parse(text: str) -> tuple[Node, ...]:
    """Every NUMA node in the order of the text."""
    lines = text.split("\n")
    found = [(index, match) for index, line in enumerate(lines) if (match := _NODE.fullmatch(line))]
    places = {index: match["indent"] for index, match in found}
    return tuple(_node(lines, index, match, places) for index, match in found)


def _node(lines: Sequence[str], index: int, match: re.Match[str], places: dict[int, str]) -> Node:
    is_beside = match["indent"] in (places.get(index - 1), places.get(index + 1))
    return Node(
        number=int(match["number"] or match["physical"]),
        memory_bytes=int(match["memory"] or 0) * _BYTES[match["unit"] or "K"],
        line=lines[index].strip(),
        is_plain=not match["tier"] and not is_beside and _has_cpus(lines, index),
    )


def _has_cpus(lines: Sequence[str], index: int) -> bool:
    """Whether a CPU stands below what the node belongs to: the line above it that is less indented."""
    depth = _depth(lines[index])
    above = next((_depth(line) for line in reversed(lines[:index]) if line.strip() and _depth(line) < depth), 0)
    for line in lines[index + 1 :]:
        if line.strip() and _depth(line) <= above:
            return False
        if _CPU.search(line):
            return True
    return False


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
