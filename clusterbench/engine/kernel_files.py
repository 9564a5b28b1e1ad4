"""Libraries of compiled kernels on disk, of which torch takes those that are there for whole."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_HEADER = 64
"""Bytes of the header of an ELF file of 64 bits."""

STANDSTILL_S = 10.0
"""Nobody writes a file any more that was not written to for so long; a linker takes a tenth of a second."""


def drop_unfinished(folder: Path, clock: Callable[[], float] = time.time, standstill_s: float = STANDSTILL_S) -> None:
    """Removes libraries that a killed linker left behind in a cache of kernels; waits for those that are being written.

    torch compiles a kernel that is not there, and loads one that is: a part of one fails in every later run on the host
    ("file too short").
    """
    for library in folder.glob("*/*.so"):
        with suppress(FileNotFoundError):
            while not _is_whole(library):
                if clock() - library.stat().st_mtime > standstill_s:
                    library.unlink()
                else:
                    time.sleep(0.1)


def _is_whole(library: Path) -> bool:
    """Whether all sections that its header names are there; a linker writes the table of them last.

    Source: Tool Interface Standard, Executable and Linking Format; ``Elf64_Ehdr`` in elf.h.
    """
    with library.open("rb") as file:
        header = file.read(_HEADER)
    if len(header) < _HEADER:
        return False
    table, size, number = struct.unpack("<40xQ10xHH2x", header)
    return bool(table) and library.stat().st_size >= int(table + size * number)
