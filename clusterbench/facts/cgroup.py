from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from clusterbench.facts import Facts, Files

PATH = "/proc/self/cgroup"
ROOT = "/sys/fs/cgroup"
_MOST_LEVELS = 20
_NO_LIMIT_BYTES = 2**62
"""Above this version 1 means none: it writes the largest number of whole pages."""


@dataclass(frozen=True, kw_only=True)
class Cgroup(Facts):
    """What this process's control group allows: the tightest of its own bounds and of those above it.

    Attributes
    ----------
    version
        2 where the memory controller is that of the unified tree, else 1.
    cpu_quota
        CPUs' worth of time; None where nothing bounds it.
    cpus
        The CPUs of its cpuset, ``0-27``; a launcher may bind a process to fewer.
    num_throttled
        Periods in which its processes were stopped because a quota was used up, its own or that of a group above,
        which stops all below and counts it there alone: the most of any of them.
    oom_kills
        Processes that the kernel killed for lack of memory in it.
    """

    version: int | None
    path: str | None
    cpu_quota: float | None
    cpus: str | None
    memory_limit_bytes: int | None
    memory_used_bytes: int | None
    processes_limit: int | None
    num_throttled: int | None
    oom_kills: int | None

    @classmethod
    def read(cls, files: Files) -> Self:
        groups = _groups(files.text(PATH) or "")
        unified = groups.get("")
        if unified is not None and files.exists(f"{ROOT}/cgroup.controllers"):
            return cls(version=2, path=unified[:200], **_second(files, unified), unread=files.unread)
        if groups:
            own = groups.get("memory", unified)
            return cls(version=1, path=own[:200] if own else None, **_first(files, groups), unread=files.unread)
        return cls(version=None, path=None, **_first(files, {}), unread=files.unread)


def _groups(text: str) -> dict[str, str]:
    """Own group by controller, ``""`` for the unified tree: ``0::/user.slice``, ``4:cpu,cpuacct:/``."""
    groups = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\d+:([^:]*):(/.*)", line)
        for controller in match[1].split(",") if match else ():
            groups[controller] = match[2] if match else ""
    return groups


def _upwards(tree: str, path: str) -> Iterator[str]:
    """The folders from the own group up to the root; inside a container the own one may not be shown."""
    parts = [part for part in path.split("/") if part and part != ".."][:_MOST_LEVELS]
    for number in range(len(parts), -1, -1):
        yield "/".join([tree, *parts[:number]])


def _tightest(files: Files, tree: str, path: str, name: str, value: Callable[[str], float | None]) -> float | None:
    found = [value(files.text(f"{folder}/{name}", optional=True) or "") for folder in _upwards(tree, path)]
    return min((each for each in found if each is not None), default=None)


def _nearest(files: Files, tree: str, path: str, name: str) -> str | None:
    texts = (files.text(f"{folder}/{name}", optional=True) for folder in _upwards(tree, path))
    return next((text for text in texts if text), None)


def _num_throttled(files: Files, tree: str, path: str) -> int | None:
    texts = (files.text(f"{folder}/cpu.stat", optional=True) for folder in _upwards(tree, path))
    return max((number for text in texts if (number := _entry(text, "nr_throttled")) is not None), default=None)


def _second(files: Files, path: str) -> dict[str, Any]:
    def of(name: str) -> str | None:
        return _nearest(files, ROOT, path, name)

    return {
        "cpu_quota": _tightest(files, ROOT, path, "cpu.max", _quota),
        "cpus": of("cpuset.cpus.effective"),
        "memory_limit_bytes": _whole(_tightest(files, ROOT, path, "memory.max", _bound)),
        "memory_used_bytes": _number(of("memory.current")),
        "processes_limit": _whole(_tightest(files, ROOT, path, "pids.max", _bound)),
        "num_throttled": _num_throttled(files, ROOT, path),
        "oom_kills": _entry(of("memory.events"), "oom_kill"),
    }


def _first(files: Files, groups: dict[str, str]) -> dict[str, Any]:
    cpu, memory, cpuset, pids = (
        (f"{ROOT}/{name}", groups.get(name, "/")) for name in ("cpu", "memory", "cpuset", "pids")
    )
    quotas = [_quota_of(files, folder) for folder in _upwards(*cpu)]
    return {
        "cpu_quota": min((quota for quota in quotas if quota is not None), default=None),
        "cpus": _nearest(files, *cpuset, "cpuset.effective_cpus") or _nearest(files, *cpuset, "cpuset.cpus"),
        "memory_limit_bytes": _whole(_tightest(files, *memory, "memory.limit_in_bytes", _bound)),
        "memory_used_bytes": _number(_nearest(files, *memory, "memory.usage_in_bytes")),
        "processes_limit": _whole(_tightest(files, *pids, "pids.max", _bound)),
        "num_throttled": _num_throttled(files, *cpu),
        "oom_kills": _entry(_nearest(files, *memory, "memory.oom_control"), "oom_kill"),
    }


def _quota(text: str) -> float | None:
    """``max 100000`` is no bound, ``400000 100000`` four CPUs."""
    match = re.fullmatch(r"(\d{1,15}) (\d{1,15})", text)
    return int(match[1]) / int(match[2]) if match and int(match[2]) else None


def _quota_of(files: Files, folder: str) -> float | None:
    """Of version 1, in two files; -1 is no bound."""
    micros, period = (
        _number(files.text(f"{folder}/{name}", optional=True)) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    )
    return micros / period if micros is not None and micros > 0 and period else None


def _bound(text: str) -> float | None:
    return int(text) if re.fullmatch(r"\d{1,19}", text) and int(text) < _NO_LIMIT_BYTES else None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d{1,18}", text) else None


def _entry(text: str | None, name: str) -> int | None:
    match = re.search(rf"^{name} (\d{{1,18}})$", text or "", re.MULTILINE)
    return int(match[1]) if match else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
