from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

FOLDER = "/proc/pressure"


@dataclass(frozen=True)
class Stalled:
    """Share of the last 10, 60 and 300 seconds in which tasks waited, as a fraction."""

    last_10_s: float
    last_60_s: float
    last_300_s: float


@dataclass(frozen=True, kw_only=True)
class Pressure(Facts):
    """The kernel's pressure stall information: ``some`` tasks waited for it, or all of them at once (``full``).

    Source: the kernel's Documentation/accounting/psi.rst.
    """

    cpu_some: Stalled | None
    memory_some: Stalled | None
    memory_full: Stalled | None
    io_some: Stalled | None
    io_full: Stalled | None

    @classmethod
    def read(cls, files: Files) -> Self:
        said = {what: files.text(f"{FOLDER}/{what}") or "" for what in ("cpu", "memory", "io")}
        return cls(
            cpu_some=_stalled(said["cpu"], "some"),
            memory_some=_stalled(said["memory"], "some"),
            memory_full=_stalled(said["memory"], "full"),
            io_some=_stalled(said["io"], "some"),
            io_full=_stalled(said["io"], "full"),
            unread=files.unread,
        )


def _stalled(text: str, which: str) -> Stalled | None:
    """``some avg10=1.53 avg60=0.87 avg300=0.22 total=55371``, in percent."""
    percent = r"(\d+\.\d+)"
    match = re.search(rf"^{which} avg10={percent} avg60={percent} avg300={percent}", text, re.MULTILINE)
    return Stalled(*(round(float(match[part]) / 100, 6) for part in (1, 2, 3))) if match else None
