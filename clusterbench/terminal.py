"""How wide lines may be: as wide as the terminal that they go to, and as wide as ever in a file or a pipe."""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from typing import TextIO

WIDTH = 120
"""Columns that prose is wrapped to, where no terminal is narrower."""


def columns(stream: TextIO | None = None) -> int:
    """Columns that prose for this stream is wrapped to; for stdout, where none is named."""
    return min(WIDTH, of_terminal(stream or sys.stdout) or WIDTH)


def fitted(text: str, stream: TextIO) -> str:
    """A text as a stream takes it: in a terminal, lines that are too wide go on below, further in, at a whole word.

    In a file or a pipe they stay as they are, for programs.
    """
    width = of_terminal(stream)
    return text if width is None else "\n".join(part for line in text.split("\n") for part in _folded(line, width))


def tell(text: str) -> None:
    """A message to stderr, as wide as its terminal."""
    print(fitted(text, sys.stderr), file=sys.stderr, flush=True)


def open_closed_streams() -> None:
    """Leads what was closed as the program began (``2>&-``) nowhere.

    Python has no stream for it, so that whoever prints fails; and the next file that is opened would get its number,
    and with it all that other programs print there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(nowhere, nowhere == number)
            setattr(sys, name, os.fdopen(nowhere, "w" if number else "r"))


def escape_what_is_not_encoded() -> None:
    """Writes a character that stdout's encoding lacks as stderr does, ``\\u2014``, instead of failing in the middle."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def of_terminal(stream: TextIO) -> int | None:
    """The columns of the terminal behind a stream; None where there is no terminal, or one that does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # a file or a pipe; a stream without a descriptor
        return None


def _folded(line: str, width: int) -> list[str]:
    """Words of at most ``width`` columns a line; one that is wider, such as a path, keeps a line of its own."""
    if len(line) <= width:
        return [line]
    start = re.match(r"#?\s*", line)
    assert start is not None
    indent = f"{start[0]}    "
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
