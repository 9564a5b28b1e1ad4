from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files
from clusterbench.facts.processor import FOLDER

_CPU = re.compile(r"cpu\d+")


@dataclass(frozen=True)
class Socket:
    """How often a processor, or a core of it, lowered its clock for heat, and for how long in all; by its worst CPU.

    ``lowered_s`` is None of kernels before 5.4, which do not say it.
    """

    number: int
    times: int
    lowered_s: float | None


@dataclass(frozen=True, kw_only=True)
class CpuThrottling(Facts):
    """Heat of processors since the start, as kernels count it of Intel's; no ``sockets`` where they do not.

    Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu, ``thermal_throttle``.
    """

    sockets: tuple[Socket, ...]
    uptime_s: float | None

    @classmethod
    def read(cls, files: Files) -> Self:
        uptime = re.match(r"\d{1,12}\.\d+", files.text("/proc/uptime", optional=True) or "")
        return cls(sockets=_sockets(files), uptime_s=float(uptime[0]) if uptime else None, unread=files.unread)


def _sockets(files: Files) -> tuple[Socket, ...]:
    of_sockets: dict[int, list[tuple[int, float | None]]] = defaultdict(list)
    for cpu in filter(_CPU.fullmatch, files.names(FOLDER)):
        folder = f"{FOLDER}/{cpu}/thermal_throttle"
        for what in ("core", "package") if files.exists(folder) else ():
            times = files.number(f"{folder}/{what}_throttle_count", optional=True)
            lowered_ms = files.number(f"{folder}/{what}_throttle_total_time_ms", optional=True)
            if times is not None:
                number = files.number(f"{FOLDER}/{cpu}/topology/physical_package_id", optional=True) or 0
                of_sockets[number].append((times, None if lowered_ms is None else lowered_ms / 1e3))
    return tuple(
        Socket(
            number,
            max(times for times, _ in counts),
            max((lowered_s for _, lowered_s in counts if lowered_s is not None), default=None),
        )
        for number, counts in sorted(of_sockets.items())
    )
