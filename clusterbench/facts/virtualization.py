from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

PROGRAM = "systemd-detect-virt"
_DMI = "/sys/class/dmi/id"
_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Virtualization(Facts):
    """What this system runs in, in systemd's words, and what the firmware says of the machine.

    ``machine`` is ``none`` on bare metal, else ``kvm``, ``microsoft``, ``xen``, ``vmware`` ...; ``container`` is
    ``none`` or ``docker``, ``podman``, ``lxc`` ... Where the program is absent the CPU's flag ``hypervisor`` says the
    first.
    """

    machine: str | None
    container: str | None
    maker: str | None
    product: str | None

    @property
    def is_virtual(self) -> bool:
        """Whether it is known to be a virtual machine."""
        return self.machine not in (None, _NONE)

    @classmethod
    def read(cls, files: Files) -> Self:
        return cls(
            machine=_said(files, "--vm") or _by_flag(files),
            container=_said(files, "--container") or _by_file(files),
            maker=files.text(f"{_DMI}/sys_vendor", optional=True),
            product=files.text(f"{_DMI}/product_name", optional=True),
            unread=files.unread,
        )


def _said(files: Files, option: str) -> str | None:
    """Where there is none the program prints ``none`` and ends with exit code 1."""
    word = (files.output(PROGRAM, option) or "").strip()
    if files.unread.get(f"{PROGRAM} {option}", "").endswith(f"exit code 1: {_NONE}"):
        del files.unread[f"{PROGRAM} {option}"]
        return _NONE
    return word if re.fullmatch(r"[a-z0-9-]{1,30}", word) else None


def _by_flag(files: Files) -> str | None:
    """Of x86 alone; no other kind of CPU says it."""
    flags = re.search(r"^flags\s*:(.*)$", files.text("/proc/cpuinfo", optional=True) or "", re.MULTILINE)
    if flags is None:
        return None
    return "a hypervisor" if "hypervisor" in flags[1].split() else _NONE


def _by_file(files: Files) -> str | None:
    for path, word in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if files.exists(path):
            return word
    word = (files.text("/run/systemd/container", optional=True) or "").strip()
    return word if re.fullmatch(r"[a-z0-9-]{1,30}", word) else None
