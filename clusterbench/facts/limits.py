from __future__ import annotations

import re
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


@dataclass(frozen=True, kw_only=True)
class Limits(Facts):
    """Soft limits of a process that a launcher starts on this host.

    :data:`UNLIMITED` stands for no limit. They are those of this process: a login shell's may be others.
    """

    memlock_bytes: int | None
    open_files: int | None
    stack_bytes: int | None
    processes: int | None

    @classmethod
    def read(cls, files: Files) -> Self:
        rows = (files.text(PATH) or "").splitlines()
        return cls(**{field: _soft(rows, name) for field, name in _NAMES.items()}, unread=files.unread)


def _soft(rows: list[str], name: str) -> int | None:
    """``Max locked memory         8388608              8388608              bytes``"""
    for row in rows:
        if row.startswith(name):
            word = (row[len(name) :].split() or [""])[0]
            return UNLIMITED if word == "unlimited" else int(word) if re.fullmatch(r"\d{1,19}", word) else None
    return None
