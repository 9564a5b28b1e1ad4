"""A process, told from all others: of this host and of others, of this boot and of earlier ones.

Run as a module it prints whether the process that its argument describes, as JSON, has ended on this host.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

ENDED, RUNNING = "that process has ended", "that process is running"
_GONE = ("Z", "X", "x")
"""The kernel's letters for a process that has ended and was not asked for its exit code yet."""


@dataclass(frozen=True)
class Process:
    """A process as it can be written down.

    Attributes
    ----------
    boot
        The kernel's identity of the boot, another one after each; empty where it has none.
    namespace
        Where process numbers and times since boot are counted as they are for this process: those of a container are
        another host's to everyone outside.
    started
        Clock ticks after the boot: numbers of processes are used again.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def this(cls) -> Self:
        """The one that asks."""
        _, started = _state(os.getpid()) or ("", 0)
        return cls(socket.gethostname(), *_here(), os.getpid(), started)

    def is_gone(self) -> bool | None:
        """Whether it has ended; None where that cannot be known from here: another host, boot or container."""
        if not self.boot or (self.host, self.boot, self.namespace) != (socket.gethostname(), *_here()):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it is another user's
        if (now := _state(self.pid)) is None:
            return False  # a /proc that hides the processes of others
        state, started = now
        return state in _GONE or started != self.started


@cache
def _here() -> tuple[str, str]:
    """Boot and namespaces of this process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        namespaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "time")]
    except OSError:
        return "", ""
    return boot, ".".join(map(str, namespaces))


def _state(pid: int) -> tuple[str, int] | None:
    """The kernel's letter for what a process does, and the clock tick at which it started."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


if __name__ == "__main__":
    words = {True: ENDED, False: RUNNING, None: "nothing is known of that process here"}
    print(words[Process(**json.loads(sys.argv[1])).is_gone()])
