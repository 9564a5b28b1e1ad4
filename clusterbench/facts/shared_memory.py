from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

PATH = "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class SharedMemory(Facts):
    """What the file system behind POSIX shared memory holds, as this process sees it: a container has its own."""

    size_bytes: int | None
    free_bytes: int | None

    @classmethod
    def read(cls, files: Files) -> Self:
        try:
            found = os.statvfs(files.root / PATH.lstrip("/"))
        except OSError as error:
            files.unread[PATH] = f"could not be looked at: {error.strerror}"
            return cls(size_bytes=None, free_bytes=None, unread=files.unread)
        size, free = (found.f_frsize * blocks for blocks in (found.f_blocks, found.f_bavail))
        return cls(size_bytes=size, free_bytes=free, unread=files.unread)
