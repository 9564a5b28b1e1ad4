"""The log of NVIDIA's fabric manager, ``/var/log/fabricmanager.log``: errors of switches, and of what it was asked.

systemd's journal of its service has the same sentences without time and level, and says whether it started.

Source: NVIDIA, Fabric Manager User Guide, "Fabric Manager log"; leptonai/gpud, ``components/accelerator/nvidia/
fabric-manager``, for wordings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from clusterbench.errors import ToolError

_LINE = re.compile(r"\[(?P<time>\w{3} \d\d \d{4} \d\d:\d\d:\d\d)\] \[(?P<level>\w+)\] \[tid \d+\] (?P<text>.*)")
_STOPPED = re.compile(
    r".*(?:nvidia-fabricmanager\.service: (?:Main|Control) process exited, .*status=[^0]"
    r"|request to query NVSwitch device information from NVSwitch driver failed).*"
)
_OF_JOURNAL = re.compile(
    r".*(?:nvidia-fabricmanager|NVIDIA fabric manager|Fabric Manager\b|nv-fabricmanager"
    r"|detected NVSwitch (?:non-)?fatal|all the available NVSwitches|NVSwitch device information"
    r"|Detected Pre-NVL5 system).*"
)
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
    is_stopped
        Whether it tells that the fabric manager did not start or ended.
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
    is_stopped: bool = False


@dataclass(frozen=True)
class FabricManagerLog:
    """All errors in the order in which they began; ``num_lines`` are those with a time and a level, or of a journal.

    ``begins`` and ``ends`` are empty where no line has a time.
    """

    num_lines: int
    begins: str
    ends: str
    errors: tuple[FabricError, ...]


def is_fabric_manager_log(text: str) -> bool:
    """Whether its first lines are of its form, or most of them those of its journal."""
    lines = [line for line in text.splitlines()[:50] if line.strip()]
    of_journal = sum(map(bool, map(_OF_JOURNAL.fullmatch, lines)))
    return any(map(_LINE.fullmatch, lines)) or 0 < len(lines) <= 2 * of_journal


def parse(text: str) -> FabricManagerLog:
    """What it tells.

    Raises
    ------
    ToolError
        If no line has its form.
    """
    matches = [match for line in text.splitlines() if (match := _LINE.fullmatch(line.rstrip()))]
    if not matches and is_fabric_manager_log(text):
        return _of_journal([line.strip() for line in text.splitlines() if line.strip()])
    if not matches:
        raise ToolError(f"no line of this is from the fabric manager's log: {text.strip()[-200:]!r}")
    errors = [_error(match["text"], match["time"]) for match in matches if match["level"] in _WORSE]
    return FabricManagerLog(len(matches), matches[0]["time"], matches[-1]["time"], _counted(errors))


def _of_journal(lines: Sequence[str]) -> FabricManagerLog:
    switches = [_error(line, "") for line in lines if _SXID.search(line)]
    stopped = [FabricError(None, False, "", 1, "", "", line, True) for line in lines if _STOPPED.fullmatch(line)]
    return FabricManagerLog(len(lines), "", "", (*_counted(switches), *stopped[:1]))


def _counted(errors: Iterable[FabricError]) -> tuple[FabricError, ...]:
    """Those that are alike as one."""
    alike: dict[tuple[object, ...], FabricError] = {}
    for error in errors:
        key = (error.sxid, error.where) if error.sxid is not None else (re.sub(r"\d+", "", error.text),)
        known = alike.setdefault(key, replace(error, count=0))
        alike[key] = replace(known, count=known.count + 1, last=error.last)
    return tuple(alike.values())


def _error(text: str, time: str) -> FabricError:
    if sxid := _SXID.search(text):
        switch = re.sub(r"^0000(?=[0-9a-f]{4}:)", "", sxid["switch"].lower())
        where = f"NVSwitch {switch} port {sxid['port']}"
        return FabricError(int(sxid["code"]), not sxid["fatal"], where, 1, time, time, text)
    return FabricError(None, False, "", 1, time, time, text[:200])
