"""The rows of a file with a table: CSV with commas, semicolons or tabs, or one table in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from clusterbench.csv_lines import rows_of
from clusterbench.errors import SuiteError
from clusterbench.text_files import read_text

SEPARATORS = (",", ";", "\t")

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_RULE = re.compile(":?-*:?")
_BOLD = re.compile(r"\*\*(.+?)\*\*")
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_SEPARATOR = re.compile(r"\"?sep=([,;\t])\"?[,;\t]*")
"""Excel's line before the header."""
_BAR = re.compile(r"(?<!\\)\|")


def written_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The header and each row, with the line it begins in.

    Raises
    ------
    SuiteError
        ``file:line:`` and what is wrong.
    """
    text = read_text(path)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    has_rule = len(lines) > 1 and "|" in lines[1] and all(map(_RULE.fullmatch, _cells(lines[1])))
    if lines[0].startswith("|") or has_rule:
        return _markdown_rows(path, text)
    if (said := _SEPARATOR.fullmatch(lines[0])) is not None:
        return islice(rows_of(path, said[1]), 1, None)
    return rows_of(path, separator_of(lines[0]))


def separator_of(header: str) -> str:
    """What stands between the columns of a header: what there is most of.

    >>> separator_of("model;TP, PP;gpus;mbs"), separator_of("model,seq")
    (';', ',')
    """
    return max(SEPARATORS, key=header.count)


def _cells(line: str) -> list[str]:
    inner = line.removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [cell.replace("\\|", "|").strip() for cell in _BAR.split(inner)]


def _markdown_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    for line, written in enumerate(map(str.strip, text.splitlines()), start=1):
        if written and "|" not in written:
            raise SuiteError(
                f"{path.name}:{line}: no row of a table in Markdown, as no '|' is in it.\n"
                "hint: leave the table alone in its file"
            )
        cells = _cells(written)
        if written and not all(_RULE.fullmatch(cell) for cell in cells):
            yield line, [_plain(cell) for cell in cells]


def _plain(cell: str) -> str:
    """A cell of Markdown without bold, links and breaks of lines."""
    return " ".join(_BOLD.sub(r"\1", _LINK.sub(r"\1", _BREAK.sub(" ", cell))).split())
