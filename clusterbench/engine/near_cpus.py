"""Keeps a process on the CPUs beside a card: of a host with several NUMA nodes each card belongs to one of them."""

from __future__ import annotations

import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from clusterbench.host_facts import cpus

PCI = Path("/sys/bus/pci/devices")


def stay_near(card: Path) -> None:
    """Lets all threads of this process run on CPUs near a card alone; no other CPUs than were allowed before.

    Memory is taken from the node of the thread that first writes to it, or pins it: without this, copies of half of the
    ranks pass the link between the sockets, which is slower than a GPU's own.

    Parameters
    ----------
    card
        Its folder in ``/sys``.

    Source
    ------
    ``torchrun --numa-binding=node``; the documentation of ``torch.numa.binding``: 1 to 10 % of a training step.
    """
    near = near_cpus(card, os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), near)


def near_cpus(card: Path, usable: Set[int]) -> frozenset[int]:
    """Those of the usable CPUs that are near a card; all of them where none is, or the kernel does not say."""
    try:
        told = (card / "local_cpulist").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return frozenset(usable)
    return frozenset(usable & cpus(told.strip())) or frozenset(usable)
