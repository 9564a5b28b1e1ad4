"""What can go wrong, as one tree.

Everything under :class:`ClusterbenchError` is printed without a traceback. Each message says where, which value, what
would be accepted and what to do next.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path


class ClusterbenchError(Exception):
    """A failure that the message explains completely; ``exit_code`` is what the command line ends with."""

    exit_code = 1


class SuiteError(ClusterbenchError):
    """A mistake in a suite or on the command line."""

    exit_code = 2


class LayoutError(SuiteError):
    """A layout that cannot be read, or that does not fit its ranks."""


class RunFolderError(ClusterbenchError):
    """A run folder that cannot be written or read."""

    exit_code = 2


class DiskError(RunFolderError):
    """A disk that fills up or goes away during a run; what was on it before is unharmed."""

    exit_code = 1


class LaunchError(ClusterbenchError):
    """Processes that could not be started, or that do not find each other."""


class WrongResult(ClusterbenchError):
    """A check that compared what a step computed with what it had to compute, and found a difference.

    ``evidence`` is what the check measured, as it would have returned it.
    """

    def __init__(self, message: str, evidence: Mapping[str, float] | None = None) -> None:
        super().__init__(message)
        self.evidence = dict(evidence or {})


class NotHere(ClusterbenchError):
    """A case this machine cannot run: the device or the tool is missing. Becomes a ``skipped`` row."""


class ToolError(ClusterbenchError):
    """An external program that failed, or printed what cannot be read; the message quotes it."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the closest allowed word, or nothing.

    >>> nearest("max_byte", ["dtype", "max_size"])
    " Did you mean 'max_size'?"
    >>> nearest("zebra", ["dtype", "max_size"])
    ''
    """
    close = difflib.get_close_matches(word, list(allowed), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def path_of(given: object, what: str) -> Path:
    """What a program hands over as the path of something.

    Raises
    ------
    SuiteError
        If it is none: text and ``os.PathLike`` are.
    """
    if not isinstance(given, str | os.PathLike):
        raise SuiteError(f"{what} is {given!r:.80}; it must be a path: text, or a pathlib.Path.")
    return Path(given)
