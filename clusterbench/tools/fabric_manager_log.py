"""The log of NVIDIA's fabric manager, ``/var/log/fabricmanager.log``: errors of switches, and of what it was asked.

Source: NVIDIA, Fabric Manager User Guide, "Fabric Manager log"; leptonai/gpud, ``components/accelerator/nvidia/
fabric-manager``, for wordings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from clusterbench.errors import ToolError

_LINE = re.compile(r"\[(?P<time>\w{3} \d\d \d{4} \d\d:\d\d:\d\d)\] \[(?P<level>\w+)\] \[tid \d+\] (?P<text>.*)")
_SXID = re.compile(
    r"detected NVSwitch (?P<fatal>non-)?fatal error (?P<code>\d+) on .*NVSwitch pci bus id (?P<switch>[0-9a-fA-F:.]+)"
    r".* port (?P<port>\d+)"
)
_WORSE = ("ERROR", "CRITICAL", "FATAL")


@dataclass(frozen=True)
class FabricError:
    """Errors that are alike but for their time.

    Attributes
    ----------
    sxid
        Number of an NVSwitch's error, with the word of the line whether it ``is_fatal``; None for another error.
    where
        ``NVSwitch 0000:83:00.0 port 34``; empty where the line names none.
    """

    sxid: int | None
    is_fatal: bool
    where: str
    count: int
    first: str
    last: str
    text: str


@dataclass(frozen=True)
class FabricManagerLog:
    """All errors in the order in which they began; ``num_lines`` are those with a time and a level."""

    num_lines: int
    begins: str
    ends: str
    errors: tuple[FabricError, ...]


def is_fabric_manager_log(text: str) -> bool:
    """Whether its first lines are of its form."""
    return any(_LINE.fullmatch(line) for line in text.splitlines()[:50])


def parse(text: str) -> FabricManagerLog:
    """What it tells.

    Raises
    ------
    ToolError
        If no line has its form.
    """
    matches = [match for line in text.splitlines() if (match := _LINE.fullmatch(line.rstrip()))]
    if not matches:
        raise ToolError(f"no line of this is from the fabric manager's log: {text.strip()[-200:]!r}")
    errors: dict[tuple[object, ...], FabricError] = {}
    for match in matches:
        if match["level"] in _WORSE:
            error = _error(match)
            key = (error.sxid, error.where) if error.sxid is not None else (re.sub(r"\d+", "", error.text),)
            known = errors.setdefault(key, replace(error, count=0))
            errors[key] = replace(known, count=known.count + 1, last=match["time"])
    return FabricManagerLog(len(matches), matches[0]["time"], matches[-1]["time"], tuple(errors.values()))


def _error(match: re.Match[str]) -> FabricError:
    text, time = match["text"], match["time"]
    if sxid := _SXID.search(text):
        switch = re.sub(r"^0000(?=[0-9a-f]{4}:)", "", sxid["switch"].lower())
        where = f"NVSwitch {switch} port {sxid['port']}"
        return FabricError(int(sxid["code"]), not sxid["fatal"], where, 1, time, time, text)
    return FabricError(None, False, "", 1, time, time, text[:200])
