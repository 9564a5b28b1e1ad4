"""Cards of a planted host in other slots."""

from __future__ import annotations

from collections.abc import Sequence

from tests.facts.machine import Machine


def move(machine: Machine, name: str, path: Sequence[str], numa_node: int) -> None:
    """Puts the card of this name below other bridges."""
    for card in machine.environment["pcie"]:
        if name in card["names"]:
            card |= {"path": list(path), "numa_node": numa_node}
