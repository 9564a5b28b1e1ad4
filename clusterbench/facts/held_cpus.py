from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files
from clusterbench.facts.processor import FOLDER

STAT, LOAD = "/proc/stat", "/proc/loadavg"
_BOUNDS = ("scaling_max_freq", "bios_limit")


@dataclass(frozen=True, kw_only=True)
class HeldCpus(Facts):
    """What keeps processors from their speed: bounds of their clock, time that a hypervisor took, and other work.

    Attributes
    ----------
    clocks
        How many CPUs have which bound below their highest clock, ``scaling_max_freq 1900000 of 3800000 kHz``; those
        without one count under ``""``. Where the driver has a table, its highest entry bounds nothing: acpi-cpufreq
        asks by it for all that is above, and ``cpuinfo_max_freq`` is the clock of a core that boosts alone.
    busy_s, stolen_s
        Since the start, of all CPUs: time with work to do, the stolen time in it. At 100 ticks a second, as in every
        kernel that is shipped.
    load
        How many tasks ran, or waited for a CPU or a disk, in the mean of the last minute.
    num_running
        How many ran or waited for a CPU at this moment.

    Source: the kernel's Documentation/admin-guide/pm/cpufreq.rst and Documentation/filesystems/proc.rst;
    ``acpi_cpufreq_cpu_init`` in drivers/cpufreq/acpi-cpufreq.c.
    """

    clocks: Mapping[str, int]
    busy_s: float | None
    stolen_s: float | None
    load: float | None = None
    num_running: int | None = None

    @classmethod
    def read(cls, files: Files) -> Self:
        stat = files.text(STAT) or ""
        busy_s, stolen_s = _times(stat)
        running = re.search(r"^procs_running (\d{1,9})$", stat, re.MULTILINE)
        load = re.match(r"\d{1,9}\.\d+", files.text(LOAD, optional=True) or "")
        return cls(
            clocks=_clocks(files),
            busy_s=busy_s,
            stolen_s=stolen_s,
            load=float(load[0]) if load else None,
            num_running=int(running[1]) if running else None,
            unread=files.unread,
        )


def _clocks(files: Files) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for policy in files.names(f"{FOLDER}/cpufreq"):
        folder = f"{FOLDER}/cpufreq/{policy}"
        most = files.number(f"{folder}/cpuinfo_max_freq", optional=True) if policy.startswith("policy") else None
        if not most:
            continue
        bounds = {name: files.number(f"{folder}/{name}", optional=True) for name in _BOUNDS}
        table = files.text(f"{folder}/scaling_available_frequencies", optional=True) or ""
        free = max((int(clock) for clock in table.split() if clock.isdecimal()), default=most)
        below = {name: bound for name, bound in bounds.items() if bound and bound < min(most, free)}
        name = min(below, key=lambda each: below[each], default="")
        word = f"{name} {below[name]} of {most} kHz" if name else ""
        counts[word] += len((files.text(f"{folder}/affected_cpus", optional=True) or "0").split())
    return dict(counts)


def _times(stat: str) -> tuple[float | None, float | None]:
    """``cpu  user nice system idle iowait irq softirq steal ...``, in ticks; None where a kernel counts less."""
    match = re.search(r"^cpu +(\d{1,18}(?: \d{1,18}){7})\b", stat, re.MULTILINE)
    if match is None:
        return None, None
    user, nice, system, _, _, irq, softirq, steal = (int(ticks) / 100 for ticks in match[1].split())
    return user + nice + system + irq + softirq + steal, steal
