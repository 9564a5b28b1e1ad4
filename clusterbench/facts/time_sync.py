from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from clusterbench.facts import Facts, Files

TIMEDATECTL = "timedatectl show --property=NTPSynchronized --property=NTP"
CHRONYC = "chronyc -n -c tracking"
CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
CHRONYD = "/run/chrony"
"""There where chrony runs. Without it chronyc waits for an answer for seconds."""
NTPQ = "ntpq -c rv"
_UNSYNCHRONISED = "Not synchronised"
_MOST_OFFSET_S = 1e6


@dataclass(frozen=True, kw_only=True)
class TimeSync(Facts):
    """Whether something keeps the clock of this host right, as the first that says so of the kernel, chrony and ntpd.

    Attributes
    ----------
    is_synchronised
        The kernel's word (``timedatectl``), which any service sets; else chrony's or ntpd's.
    said_by
        The command that said it.
    offset_s
        How far chrony or ntpd takes the clock to be off now.
    server
        What the clock follows, as chrony names it.
    """

    is_synchronised: bool | None
    said_by: str | None
    offset_s: float | None
    server: str | None
    clock_source: str | None

    @classmethod
    def read(cls, files: Files) -> Self:
        kernel = _by_kernel(files.output(*TIMEDATECTL.split()) or "")
        chrony = _chrony(files)
        ntpd = files.output(*NTPQ.split(maxsplit=2)) or "" if kernel is None and not chrony else ""
        answers = [
            (kernel, TIMEDATECTL),
            (chrony[13] != _UNSYNCHRONISED if chrony else None, CHRONYC),
            (_by_ntpd(ntpd), NTPQ),
        ]
        is_synchronised, said_by = next((each for each in answers if each[0] is not None), (None, None))
        return cls(
            is_synchronised=is_synchronised,
            said_by=said_by,
            offset_s=_seconds(chrony[4]) if chrony else _ntpd_offset(ntpd),
            server=chrony[1][:60] or None if chrony else None,
            clock_source=files.text(CLOCK_SOURCE, optional=True),
            unread=files.unread,
        )


def _chrony(files: Files) -> list[str]:
    """The 14 values of a line: address, name, stratum, ... Empty where chrony does not run or answer."""
    values = (files.output(*CHRONYC.split()) or "").strip().split(",") if files.exists(CHRONYD) else []
    return values if len(values) == 14 else []


def _by_kernel(printed: str) -> bool | None:
    match = re.search(r"^NTPSynchronized=(yes|no)$", printed, re.MULTILINE)
    return match[1] == "yes" if match else None


def _by_ntpd(printed: str) -> bool | None:
    """``leap=11`` (alarm) and ``sync_unspec`` are what ntpd says before it follows a server."""
    if "leap" not in printed or "sync_" not in printed:
        return None
    return not re.search(r"leap_alarm|leap=11|sync_unspec", printed)


def _ntpd_offset(printed: str) -> float | None:
    """ntpd writes milliseconds."""
    match = re.search(r"\boffset=([+-]?\d{1,12}(?:\.\d+)?)", printed)
    return round(float(match[1]) / 1000, 9) if match else None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < _MOST_OFFSET_S else None
