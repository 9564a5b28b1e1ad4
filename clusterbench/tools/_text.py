"""The lines a program printed: whole ones, without what launchers and terminals put around them."""

from __future__ import annotations

import math
import re

from clusterbench.errors import ToolError
from clusterbench.tools._prefix import without_escapes, without_launcher


def whole_lines(text: str) -> list[str]:
    """The lines that end in a line break: what is behind the last one may be cut in the middle of a number.

    >>> whole_lines("[1,0]<stdout>: 8 \\x1b[1m9.5\\x1b[0m\\n16 1")
    ['8 9.5']
    """
    lines = without_escapes(text).split("\n")[:-1]
    return [without_launcher(line).rstrip() for line in lines]


def starts_with_figure(line: str) -> bool:
    """Whether a line begins as a row of a table does, or as the second half of a row that was broken in two.

    >>> [starts_with_figure(line) for line in ("  65536  1000", ".90", "2 warnings", "a 1", "")]
    [True, True, True, False, False]
    """
    return re.match(r"\s*[\d.]+(?:\s|$)", line) is not None


def number(tool: str, cell: str, line: str) -> float:
    """A cell of a table.

    Raises
    ------
    ToolError
        If it is no number, or none that a measurement can have: negative, or not finite.
    """
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or "_" in cell:
        raise ToolError(f"{tool} printed {cell!r} where a number belongs: {line.strip()!r}")
    return value


def positive(tool: str, cell: str, line: str) -> float:
    """A cell that cannot be zero either: a time, a bandwidth."""
    value = number(tool, cell, line)
    if value == 0:
        raise ToolError(f"{tool} printed {cell!r} where a number above zero belongs: {line.strip()!r}")
    return value


_MOST_DIGITS = 18


def count(tool: str, cell: str, line: str) -> int:
    """A whole number of at least 1: of ranks, of steps, of tokens.

    Raises
    ------
    ToolError
        If it is none, or larger than any that is counted.
    """
    if not re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", cell) or not int(cell):
        raise ToolError(f"{tool} printed {cell[:40]!r} where a number of 1 or more belongs: {line.strip()[:200]!r}")
    return int(cell)


def end_of(text: str) -> str:
    """The end of what was printed, for a message."""
    return repr(text.strip()[-200:])
