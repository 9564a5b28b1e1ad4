from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

BALANCING = "/proc/sys/kernel/numa_balancing"
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
MEMINFO = "/proc/meminfo"
SWAPS = "/proc/swaps"


@dataclass(frozen=True)
class Swap:
    """A line of ``/proc/swaps``; ``kind`` is ``partition`` or ``file``."""

    path: str
    kind: str
    size_bytes: int
    used_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemorySettings(Facts):
    """How the kernel is told to treat memory, in its own words and numbers.

    ``transparent_huge_pages`` is ``always``, ``madvise`` or ``never``; ``reserved_huge_pages`` of ``huge_page_bytes``
    each are kept from everything that does not ask for them.
    """

    total_bytes: int | None
    available_bytes: int | None
    numa_balancing: int | None
    transparent_huge_pages: str | None
    huge_page_defrag: str | None
    reserved_huge_pages: int | None
    huge_page_bytes: int | None
    zone_reclaim_mode: int | None
    overcommit_memory: int | None
    swappiness: int | None
    swaps: tuple[Swap, ...] | None

    @classmethod
    def read(cls, files: Files) -> Self:
        sizes = dict(re.findall(r"^(\w+): +(\d{1,15})\b", files.text(MEMINFO) or "", re.MULTILINE))
        total, available, huge = (
            int(sizes[name]) * 1024 if name in sizes else None for name in ("MemTotal", "MemAvailable", "Hugepagesize")
        )
        return cls(
            total_bytes=total,
            available_bytes=available,
            numa_balancing=files.number(BALANCING),
            transparent_huge_pages=_chosen(files.text(HUGE_PAGES)),
            huge_page_defrag=_chosen(files.text("/sys/kernel/mm/transparent_hugepage/defrag", optional=True)),
            reserved_huge_pages=int(sizes["HugePages_Total"]) if "HugePages_Total" in sizes else None,
            huge_page_bytes=huge,
            zone_reclaim_mode=files.number("/proc/sys/vm/zone_reclaim_mode", optional=True),
            overcommit_memory=files.number("/proc/sys/vm/overcommit_memory", optional=True),
            swappiness=files.number("/proc/sys/vm/swappiness", optional=True),
            swaps=_swaps(files.text(SWAPS)),
            unread=files.unread,
        )


def _chosen(text: str | None) -> str | None:
    """``madvise`` of ``always [madvise] never``."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match[1] if match else None


def _swaps(text: str | None) -> tuple[Swap, ...] | None:
    """None where the file is not that of a kernel; its first line is a heading, and sizes are in KiB."""
    if text is None or not text.startswith("Filename"):
        return None
    rows = (re.fullmatch(r"(\S+)\s+(\w+)\s+(\d{1,15})\s+(\d{1,15})\b.*", row) for row in text.splitlines()[1:])
    return tuple(Swap(row[1], row[2], int(row[3]) * 1024, int(row[4]) * 1024) for row in rows if row)
