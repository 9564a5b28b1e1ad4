from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

FOLDER = "/sys/devices/system/edac/mc"
_CONTROLLER, _MODULE = re.compile(r"mc\d+"), re.compile(r"(?:dimm|rank)\d+")


@dataclass(frozen=True)
class Counted:
    """Errors of memory that one controller counted: those of one module, or those of which it does not know the module.

    ``folder`` holds the counts, ``module`` is the board's name of it (``CPU_SrcID#0_MC#1_Chan#0_DIMM#0``), ``over_s``
    how long they were counted.
    """

    folder: str
    controller: str
    module: str
    corrected: int
    uncorrected: int
    over_s: int | None


@dataclass(frozen=True, kw_only=True)
class MemoryErrors(Facts):
    """Errors of the host's memory as the kernel counts them for everyone to read.

    ``num_controllers`` is 0 where the kernel has no driver of them, as in virtual machines; ``counted`` are the counts
    that are not zero.

    Source: the kernel's Documentation/admin-guide/RAS/main.rst, EDAC.
    """

    num_controllers: int
    counted: tuple[Counted, ...]

    @classmethod
    def read(cls, files: Files) -> Self:
        controllers = [name for name in files.names(FOLDER) if _CONTROLLER.fullmatch(name)]
        counted = tuple(each for name in controllers for each in _counted(files, name))
        return cls(num_controllers=len(controllers), counted=counted, unread=files.unread)


def _counted(files: Files, controller: str) -> Iterator[Counted]:
    folder = f"{FOLDER}/{controller}"
    over_s = files.number(f"{folder}/seconds_since_reset", optional=True)
    corrected, uncorrected = _both(files, f"{folder}/", "")
    for name in filter(_MODULE.fullmatch, files.names(folder)):
        own = f"{folder}/{name}"
        label = files.text(f"{own}/dimm_label", optional=True) or name
        of_module = _both(files, f"{own}/", "dimm_")
        if any(of_module):
            yield Counted(own, controller, label[:80], *of_module, over_s)
        corrected, uncorrected = corrected - of_module[0], uncorrected - of_module[1]
    if corrected > 0 or uncorrected > 0:
        yield Counted(folder, controller, "", max(corrected, 0), max(uncorrected, 0), over_s)


def _both(files: Files, start: str, prefix: str) -> tuple[int, int]:
    counts = (files.number(f"{start}{prefix}{kind}_count", optional=True) or 0 for kind in ("ce", "ue"))
    corrected, uncorrected = counts
    return corrected, uncorrected
