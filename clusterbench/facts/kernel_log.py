from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

from clusterbench.facts import NOT_ALLOWED, NOT_THERE, Facts, Files
from clusterbench.tools.kernel_log import MOST_EVENTS, Event, Line, events, lines

KMSG = "/dev/kmsg"
DMESG = ("dmesg",)
JOURNAL = ("journalctl", "-k", "-b", "-n", "20000", "-o", "short-iso", "--no-pager", "-q")
_MOST_BYTES = 16 * 2**20
_MOST_OF_A_RECORD = 8192


@dataclass(frozen=True, kw_only=True)
class KernelLog(Facts):
    """What the kernel logged since boot that tells of a fault.

    Attributes
    ----------
    source
        ``/dev/kmsg``, ``dmesg`` or ``journalctl``; None where none of them may be read.
    num_lines
        Lines that were looked at.
    begins
        Time of the first of them: the kernel keeps the last some thousand lines only.
    events
        At most :data:`~clusterbench.tools.kernel_log.MOST_EVENTS`; ``dropped`` is how many more there were.
    """

    source: str | None
    num_lines: int
    begins: str
    events: tuple[Event, ...]
    dropped: int

    @classmethod
    def read(cls, files: Files) -> Self:
        source, log = _log(files)
        return cls.of(log, source, files.unread)

    @classmethod
    def of(cls, log: list[Line], source: str | None, unread: Mapping[str, str] | None = None) -> Self:
        """The facts of lines that were read."""
        found = events(log)
        return cls(
            source=source,
            num_lines=sum(1 for line in log if line.text),
            begins=next((line.time for line in log if line.time), ""),
            events=tuple(found[:MOST_EVENTS]),
            dropped=max(0, len(found) - MOST_EVENTS),
            unread=unread or {},
        )


def _log(files: Files) -> tuple[str | None, list[Line]]:
    """The first source that may be read and says anything, with its lines."""
    text = _kmsg(files)
    if text is not None and (log := _dated([*lines(text)], _boot_s(files))):
        return KMSG, log
    for command in (DMESG, JOURNAL):
        said = files.output(*command)
        if said is not None and (log := [*lines(said)]) and any(line.time for line in log):
            for earlier in [KMSG, *map(" ".join, (DMESG, JOURNAL))]:
                files.unread.pop(earlier, None)
            return command[0], log
    return None, []


def _kmsg(files: Files) -> str | None:
    """All records that the kernel still holds; reading does not take them away, and does not wait for more.

    What follows a record in lines that begin with a blank names its device again, and is left out.
    """
    try:
        kmsg = os.open(files.root / KMSG.lstrip("/"), os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        files.unread[KMSG] = NOT_THERE
        return None
    except PermissionError:
        files.unread[KMSG] = NOT_ALLOWED
        return None
    except OSError as error:
        files.unread[KMSG] = f"could not be read: {error.strerror}"
        return None
    try:
        text = _records(kmsg).decode(errors="replace")
        return "\n".join(line for line in text.splitlines() if not line.startswith(" "))
    except PermissionError:
        files.unread[KMSG] = NOT_ALLOWED
    except OSError as error:
        files.unread[KMSG] = f"could not be read: {error.strerror}"
    finally:
        os.close(kmsg)
    return None


def _records(kmsg: int) -> bytes:
    records = bytearray()
    while len(records) < _MOST_BYTES:
        try:
            record = os.read(kmsg, _MOST_OF_A_RECORD)
        except BrokenPipeError:  # overwritten while it was read: the next read goes on behind it
            continue
        except BlockingIOError:
            break
        if not record:
            break
        records += record
    return bytes(records)


def _boot_s(files: Files) -> int | None:
    """When the host booted, in seconds since 1970."""
    for row in (files.text("/proc/stat", optional=True) or "").splitlines():
        if row.startswith("btime ") and row[6:].strip().isdecimal():
            return int(row[6:])
    return None


def _dated(log: list[Line], boot_s: int | None) -> list[Line]:
    """With the time of day in place of that since boot; nothing of what is no record."""
    timed = [line for line in log if line.time]
    if boot_s is None:
        return timed
    return [
        line if line.seconds is None else replace(line, time=_utc(boot_s + line.seconds) or line.time) for line in timed
    ]


def _utc(seconds: float) -> str:
    """``2026-03-02 14:10:00 UTC``; empty where it is beyond any calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return ""
