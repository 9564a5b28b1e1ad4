from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

COMMAND_LINE = "/proc/cmdline"
_KEPT = re.compile(
    r"(intel_|amd_)?iommu\b|pci=|pcie|swiotlb=|numa|transparent_hugepage=|(default_)?hugepage|mem=|memmap="
    r"|mitigations=|spectre|kpti|nopti|init_on_alloc=|init_on_free=|nosmt|nosmp|maxcpus=|nr_cpus=|isolcpus=|nohz|rcu_nocbs="
    r"|idle=|intel_idle\.|processor\.|cpuidle|intel_pstate=|amd_pstate=|cpufreq|clocksource=|tsc=|hpet=|skew_tick|preempt="
    r"|cgroup|systemd\.unified_cgroup|psi=|audit=|selinux=|nmi_watchdog|nowatchdog|nvidia|modprobe\.blacklist="
)
_MOST_WORDS = 60
_MOST_LETTERS = 100


@dataclass(frozen=True, kw_only=True)
class Kernel(Facts):
    """The kernel and how it was started.

    Attributes
    ----------
    options
        The words of its command line that bear on speed. Others are not recorded: a run's folder is shared, and they
        may hold addresses and passwords.
    boot_id
        Changes with every start: two runs of one boot share counters.
    processes_limit, threads_limit
        Of the whole system (``kernel.pid_max``, ``kernel.threads-max``).
    """

    release: str | None
    version: str | None
    options: tuple[str, ...] | None
    uptime_s: float | None
    boot_id: str | None
    processes_limit: int | None
    threads_limit: int | None

    @classmethod
    def read(cls, files: Files) -> Self:
        line = files.text(COMMAND_LINE)
        uptime = re.match(r"\d{1,12}\.\d+", files.text("/proc/uptime", optional=True) or "")
        return cls(
            release=files.text("/proc/sys/kernel/osrelease", optional=True),
            version=files.text("/proc/sys/kernel/version", optional=True),
            options=None if line is None else _options(line),
            uptime_s=float(uptime[0]) if uptime else None,
            boot_id=files.text("/proc/sys/kernel/random/boot_id", optional=True),
            processes_limit=files.number("/proc/sys/kernel/pid_max", optional=True),
            threads_limit=files.number("/proc/sys/kernel/threads-max", optional=True),
            unread=files.unread,
        )


def _options(line: str) -> tuple[str, ...]:
    """What follows ``--`` is for the first process, not for the kernel."""
    words = line.partition(" -- ")[0].split()
    return tuple(word[:_MOST_LETTERS] for word in words if _KEPT.match(word))[:_MOST_WORDS]
