from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

NAMES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
FOLDERS = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
    *("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib"),
)
"""Where distributions and container runtimes put the driver's libraries."""
DRIVER = "/proc/driver/nvidia/version"
_HEADER_BYTES = 64
_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True)
class Library:
    """A file of the driver. It is not loaded: its header says whether it is whole.

    Attributes
    ----------
    version
        What the name it links to ends with: ``570.86.15``.
    size_bytes
        None where the link points to nothing, or the file may not be read.
    least_bytes
        What its header says it holds at least; None where it is no ELF file of 64 bit.
    """

    name: str
    path: str
    version: str | None
    size_bytes: int | None
    least_bytes: int | None
    machine: str | None


@dataclass(frozen=True, kw_only=True)
class NvidiaLibraries(Facts):
    """The libraries that CUDA and NVML come from, where they are in the usual folders, and the kernel's module."""

    libraries: tuple[Library, ...]
    kernel_module: str | None

    @classmethod
    def read(cls, files: Files) -> Self:
        libraries = tuple(
            _library(files, name, f"{folder}/{name}")
            for folder in FOLDERS
            for name in NAMES
            if files.exists(f"{folder}/{name}")
        )
        said = re.search(r"\bModule\b.*?\s(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\s", files.text(DRIVER, optional=True) or "")
        return cls(libraries=libraries, kernel_module=said[1] if said else None, unread=files.unread)


def _library(files: Files, name: str, path: str) -> Library:
    version = re.search(r"\.so\.(\d{3,4}\.[\d.]{1,12})$", files.link(path) or "")
    try:
        with open(files.root / path.lstrip("/"), "rb") as file:
            size, header = os.fstat(file.fileno()).st_size, file.read(_HEADER_BYTES)
    except OSError as error:
        files.unread[path] = f"could not be read: {error.strerror}"
        return Library(name, path, version[1] if version else None, None, None, None)
    least, machine = _of_header(header)
    return Library(name, path, version[1] if version else None, size, least, machine)


def _of_header(header: bytes) -> tuple[int | None, str | None]:
    """Where the table of sections ends, which linkers write last, and the kind of CPU. Source: elf(5)."""
    if len(header) < _HEADER_BYTES or header[:4] != b"\x7fELF" or header[4] != 2 or header[5] != 1:
        return None, None
    (kind,) = struct.unpack_from("<H", header, 18)
    (start,) = struct.unpack_from("<Q", header, 40)
    size, number = struct.unpack_from("<HH", header, 58)
    return min(start + size * number, 2**62), _MACHINES.get(kind, f"ELF machine {kind}")
