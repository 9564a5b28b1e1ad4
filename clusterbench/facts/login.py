from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

NAME = "logind.conf"
FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
"""Where systemd looks, the first of them first (logind.conf(5))."""
BOOTED = "/run/systemd/system"
"""There where systemd started the system (sd_booted(3)); an image may hold its other folders."""


@dataclass(frozen=True, kw_only=True)
class Login(Facts):
    """What systemd's login service does when the last session of a user ends.

    Attributes
    ----------
    is_running
        Whether systemd runs here, and with it the service: in most containers it does not.
    removes_ipc
        ``RemoveIPC``: whether it then removes the user's shared memory. Of all files the last word counts.
    said_by
        The file that sets it, or the one whose comment tells what was compiled in.
    """

    is_running: bool
    removes_ipc: bool | None
    said_by: str | None

    @classmethod
    def read(cls, files: Files) -> Self:
        removes, said_by = _setting(files)
        if removes is None:
            files.unread[NAME] = "says nothing of RemoveIPC"
        return cls(is_running=files.exists(BOOTED), removes_ipc=removes, said_by=said_by, unread=files.unread)


def _setting(files: Files) -> tuple[bool | None, str | None]:
    """The main file first, then drop-ins by their names: of one name that of the first folder alone counts."""
    mains = [f"{folder}/{NAME}" for folder in FOLDERS]
    main = next((path for path in mains if files.exists(path)), mains[0])
    dropped: dict[str, str] = {}
    for folder in FOLDERS:
        for name in files.names(f"{folder}/{NAME}.d"):
            if name.endswith(".conf"):
                dropped.setdefault(name, f"{folder}/{NAME}.d/{name}")
    found: tuple[bool | None, str | None] = (None, None)
    for path in (main, *(dropped[name] for name in sorted(dropped))):
        for said in re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)", files.text(path, optional=True) or "", re.MULTILINE):
            found = (_truth(said), path) if _truth(said) is not None else found
    if found[0] is None:
        comment = re.search(r"^#\s*RemoveIPC\s*=\s*(\w+)", files.text(main, optional=True) or "", re.MULTILINE)
        return (_truth(comment[1]), f"{main} (as compiled)") if comment else (None, None)
    return found


def _truth(word: str) -> bool | None:
    return {
        "yes": True,
        "true": True,
        "1": True,
        "on": True,
        "no": False,
        "false": False,
        "0": False,
        "off": False,
    }.get(word.lower())
