"""What Linux namespaces need that Python 3.11 does not have: being born in one, and mounting in one."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from typing import Any

CLONE_NEWPID = 0x20000000
MS_BIND = 4096
MS_REC = 16384

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2). The mount goes when the last process of the calling process's mount namespace goes."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount {kind} on {target}")


def born_in(pid: int, command: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
    """Starts a command in the pid namespace of process ``pid``, and in no other of its namespaces.

    Nothing stands between: the Popen's pid, signals and exit status are those of the command itself. The pid namespace
    a child is born into is a property of the calling thread, so other threads may start processes meanwhile.
    """
    _birthplace(f"/proc/{pid}/ns/pid")
    try:
        return subprocess.Popen(list(command), **popen)
    finally:
        _birthplace("/proc/self/ns/pid")


def start_in(pid: int, command: Sequence[str], cwd: str, **popen: Any) -> subprocess.Popen[Any]:
    """Starts a command in the pid, net, uts, ipc and mount namespaces of process ``pid``."""
    enter = ["nsenter", f"--target={pid}", "--net", "--uts", "--ipc", "--mount", "--", "env", f"--chdir={cwd}"]
    return born_in(pid, [*enter, *command], **popen)


def _birthplace(namespace: str) -> None:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)
