"""The memory limit of processes on this host, and how many of them the kernel has killed for lack of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_V1_UNLIMITED = 2**60  # cgroup v1 writes "no limit" as a number near 2^63


def oom_kills(root: Path = Path("/")) -> int:
    """Processes of this one's control group that the kernel has killed for lack of memory.

    Where the group does not count them, those of the whole host: of what else runs there, too.
    """
    for group, is_first in _memory_groups(root):
        for name in ("memory.oom_control",) if is_first else ("memory.events.local", "memory.events"):
            if (kills := _field(group / name, "oom_kill")) is not None:
                return kills
    return _field(root / "proc/vmstat", "oom_kill") or 0


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes this process and its siblings may use: the least of the host's memory and the limits of its cgroups."""
    limits = [(_field(root / "proc/meminfo", "MemTotal:") or 0) * 1024]
    for inner, is_first in _memory_groups(root):
        name = "memory.limit_in_bytes" if is_first else "memory.max"
        for group in (inner, *inner.parents):
            if (text := _read(group / name).strip()).isdecimal() and 0 < int(text) < _V1_UNLIMITED:
                limits.append(int(text))
    return min(filter(None, limits), default=0)


def _memory_groups(root: Path) -> Iterator[tuple[Path, bool]]:
    """The folder of this process's control group, and whether it is one of version 1; on some hosts there are both."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield root / "sys/fs/cgroup" / path.lstrip("/"), False
        elif "memory" in controllers.split(","):
            yield root / "sys/fs/cgroup/memory" / path.lstrip("/"), True


def _field(path: Path, name: str) -> int | None:
    for line in _read(path).splitlines():
        first, _, rest = line.partition(" ")
        if first == name:
            return int(rest.split()[0])
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
