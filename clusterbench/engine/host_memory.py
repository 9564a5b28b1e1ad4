"""The memory limit of processes on this host, and how many of them the kernel has killed for lack of it."""

from __future__ import annotations

from pathlib import Path

_V1_UNLIMITED = 2**60  # cgroup v1 writes "no limit" as a number near 2^63


def oom_kills(root: Path = Path("/")) -> int:
    """Processes that the kernel has killed on this host since it started, in limited groups too."""
    return _field(root / "proc/vmstat", "oom_kill")


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes this process and its siblings may use: the least of the host's memory and the limits of its cgroups."""
    limits = [_field(root / "proc/meminfo", "MemTotal:") * 1024]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        folder, name = "sys/fs/cgroup", "memory.max"
        if controllers:
            folder, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            if "memory" not in controllers.split(","):
                continue
        inner = root / folder / path.lstrip("/")
        for group in (inner, *inner.parents):
            if (text := _read(group / name).strip()).isdecimal() and 0 < int(text) < _V1_UNLIMITED:
                limits.append(int(text))
    return min(filter(None, limits), default=0)


def _field(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        first, _, rest = line.partition(" ")
        if first == name:
            return int(rest.split()[0])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
