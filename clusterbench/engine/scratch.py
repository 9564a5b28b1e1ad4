"""Temporary folders that end with what made them; those of killed processes end with the next that makes one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from clusterbench.run_folder.process import Process

_PREFIX = "clusterbench"


def scratch_folder(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """A folder of this process's own among the temporary files, as a context that removes it.

    Its name says whose it is, so a folder of a process that has ended, of this user and on this boot, is known by its
    name alone, and removed.

    Parameters
    ----------
    purpose
        A word of lower-case letters.
    """
    here = Process.this()
    _remove_leftovers(Path(tempfile.gettempdir()), here)
    return tempfile.TemporaryDirectory(
        prefix=f"{_PREFIX}-{purpose}-{here.pid}-{here.started}-{_machine(here)}-", ignore_cleanup_errors=True
    )


def _machine(process: Process) -> str:
    """Host, boot and namespace in which the numbers of processes and their starts are counted."""
    return hashlib.sha256(f"{process.host} {process.boot} {process.namespace}".encode()).hexdigest()[:8]


def _remove_leftovers(folder: Path, here: Process) -> None:
    pattern = re.compile(rf"{_PREFIX}-[a-z]+-(\d{{1,9}})-(\d{{1,18}})-{_machine(here)}-\w+")
    with suppress(OSError):
        for path in folder.iterdir():
            match = pattern.fullmatch(path.name)
            if match and _is_own(path) and replace(here, pid=int(match[1]), started=int(match[2])).is_gone():
                shutil.rmtree(path, ignore_errors=True)


def _is_own(path: Path) -> bool:
    """Whether it is a folder of this user, and no link to one."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
