from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

UNLIMITED = -1
_NAMES = {
    "memlock_bytes": "Max locked memory",
    "open_files": "Max open files",
    "stack_bytes": "Max stack size",
    "processes": "Max processes",
}
PATH = "/proc/self/limits"
SHM = "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class Limits(Facts):
    """Soft limits of a process that a launcher starts on this host, and what ``/dev/shm`` holds.

    :data:`UNLIMITED` stands for no limit. They are those of this process: a login shell's may be others.
    """

    memlock_bytes: int | None
    open_files: int | None
    stack_bytes: int | None
    processes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None

    @classmethod
    def read(cls, files: Files) -> Self:
        rows = (files.text(PATH) or "").splitlines()
        limits = {field: _soft(rows, name) for field, name in _NAMES.items()}
        try:
            shm = os.statvfs(files.root / SHM.lstrip("/"))
        except OSError as error:
            files.unread[SHM] = f"could not be looked at: {error.strerror}"
            return cls(**limits, shm_bytes=None, shm_free_bytes=None, unread=files.unread)
        sizes = {"shm_bytes": shm.f_frsize * shm.f_blocks, "shm_free_bytes": shm.f_frsize * shm.f_bavail}
        return cls(**limits, **sizes, unread=files.unread)


def _soft(rows: list[str], name: str) -> int | None:
    """``Max locked memory         8388608              8388608              bytes``"""
    for row in rows:
        if row.startswith(name):
            word = row[len(name) :].split()[0]
            return UNLIMITED if word == "unlimited" else int(word)
    return None
