"""Columns for eyes and for programs: ``#`` before what is not data, names over units, nothing but spaces between."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 120


def aligned(header: Sequence[str], rows: Iterable[Sequence[object]], units: Sequence[str] = ()) -> list[str]:
    """Lines of a table; columns in which every cell is a number are flush right.

    >>> print("\\n".join(aligned(["case", "limit"], [["tp1", 60], ["tp2+sp", 168]], ["", "(s)"])))
    # case    limit
    #           (s)
      tp1        60
      tp2+sp    168
    """
    cells = [[str(cell) for cell in row] for row in rows]
    heads = [list(header)] + ([list(units)] if any(units) else [])
    columns = list(zip(*heads, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [bool(cells) and all(map(_is_number, column[len(heads) :])) for column in columns]

    def line(start: str, row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return (start + "  ".join(padded)).rstrip()

    return [line("# ", row) for row in heads] + [line("  ", row) for row in cells]


def comment(text: str, indent: str = "") -> list[str]:
    """Prose between tables, wrapped; ``indent`` stands before every line but the first."""
    lines = (textwrap.wrap(part, WIDTH - 2 - len(indent), break_long_words=False) for part in text.splitlines())
    flat = [line for part in lines for line in part]
    return [f"# {line}" if number == 0 else f"# {indent}{line}" for number, line in enumerate(flat)]


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return False
    return True
