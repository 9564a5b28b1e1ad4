from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files
from clusterbench.host_facts import cpus

FOLDER = "/sys/devices/system/cpu"
STATUS = "/proc/self/status"
_MOST_STATES = 16


@dataclass(frozen=True)
class IdleState:
    """A state that an idle CPU may go into, with the time it takes to leave it."""

    name: str
    latency_us: int | None
    is_disabled: bool


@dataclass(frozen=True, kw_only=True)
class Processor(Facts):
    """Clocks, idle states and CPUs that may be used, in the kernel's words.

    Lists of CPUs are ``0-55,112-167``. ``governors`` and ``preferences`` count CPUs by the governor of their clock and
    by what its driver is asked to prefer (``performance``, ``balance_power``). Idle states are those of CPU 0.
    """

    online: str | None
    usable: str | None
    threads_per_core: int | None
    clock_driver: str | None
    governors: Mapping[str, int]
    preferences: Mapping[str, int]
    may_boost: bool | None
    idle_driver: str | None
    idle_states: tuple[IdleState, ...]

    @classmethod
    def read(cls, files: Files) -> Self:
        siblings = cpus(files.text(f"{FOLDER}/cpu0/topology/thread_siblings_list", optional=True))
        first = f"{FOLDER}/cpu0/cpufreq"
        return cls(
            online=files.text(f"{FOLDER}/online"),
            usable=_usable(files.text(STATUS)),
            threads_per_core=len(siblings) or None,
            clock_driver=files.text(f"{first}/scaling_driver", optional=True),
            governors=_counted(files, "scaling_governor"),
            preferences=_counted(files, "energy_performance_preference"),
            may_boost=_may_boost(files),
            idle_driver=files.text(f"{FOLDER}/cpuidle/current_driver", optional=True),
            idle_states=_idle_states(files),
            unread=files.unread,
        )


def _usable(status: str | None) -> str | None:
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status or "", re.MULTILINE)
    return match[1] if match else None


def _counted(files: Files, name: str) -> dict[str, int]:
    """A policy sets the clock of the CPUs that share it, mostly of one."""
    counts: Counter[str] = Counter()
    for policy in files.names(f"{FOLDER}/cpufreq"):
        if policy.startswith("policy"):
            folder = f"{FOLDER}/cpufreq/{policy}"
            word = files.text(f"{folder}/{name}", optional=True)
            if word:
                counts[word[:40]] += len((files.text(f"{folder}/affected_cpus", optional=True) or "0").split())
    return dict(counts)


def _may_boost(files: Files) -> bool | None:
    off = files.number(f"{FOLDER}/intel_pstate/no_turbo", optional=True)
    on = files.number(f"{FOLDER}/cpufreq/boost", optional=True)
    return off == 0 if off is not None else None if on is None else on == 1


def _idle_states(files: Files) -> tuple[IdleState, ...]:
    folder = f"{FOLDER}/cpu0/cpuidle"
    return tuple(
        IdleState(
            (files.text(f"{folder}/{state}/name", optional=True) or state)[:40],
            files.number(f"{folder}/{state}/latency", optional=True),
            files.number(f"{folder}/{state}/disable", optional=True) == 1,
        )
        for state in files.names(folder)[:_MOST_STATES]
        if state.startswith("state")
    )
