"""Keeps a process on the CPUs beside a card: of a host with several NUMA nodes each card belongs to one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path

from clusterbench.host_facts import cpus

PCI = Path("/sys/bus/pci/devices")
FEWEST = 2
"""CPUs for each card that they are near to: one for the thread that launches, one for those that send."""


def stay_near(card: Path, cards: Sequence[Path]) -> None:
    """Lets all threads of this process run on CPUs near a card alone; no other CPUs than were allowed before.

    Memory is taken from the node of the thread that first writes to it, or pins it: without this, copies of half of the
    ranks pass the link between the sockets, which is slower than a GPU's own.

    Parameters
    ----------
    card, cards
        Its folder in ``/sys``, and those of all cards whose processes run here, each near its own.

    Source
    ------
    ``torchrun --numa-binding=node``; the documentation of ``torch.numa.binding``: 1 to 10 % of a training step.
    """
    near = near_cpus(card, os.sched_getaffinity(0), cards)
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), near)


def near_cpus(card: Path, usable: Set[int], cards: Sequence[Path] = ()) -> frozenset[int]:
    """Those of the usable CPUs that are near a card; all of them where these are too few, or the kernel does not say.

    Of an allocation that has hardly a CPU on one of the nodes, processes would wait for each other there.
    """
    near = _local(card) & usable
    sharing = max(1, sum(_local(other) & usable == near for other in cards))
    return near if len(near) >= FEWEST * sharing else frozenset(usable)


def _local(card: Path) -> frozenset[int]:
    try:
        return cpus((card / "local_cpulist").read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):
        return frozenset()
