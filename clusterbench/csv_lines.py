"""Rows of a CSV file with the lines they start in, and cells of one; a file that is cut, or no text, is one error."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from clusterbench.errors import SuiteError

MOST_BYTES = 2**28

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not empty, with the line it starts in."""
    text = read_text(path)
    if not text.endswith("\n"):
        last = text.count("\n") + 1
        raise SuiteError(
            f"{path.name}:{last}: the last line has no end, so it may be cut in the middle of a number.\n"
            "hint: add the end of the line if the row is whole"
        )
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SuiteError(f"{path.name}:{line}: not CSV: {error}.") from None
        if cells and any(cell.strip() for cell in cells):
            yield line, [cell.strip() for cell in cells]


def read_text(path: Path) -> str:
    """A file that is text in UTF-8 and not beyond any reason in size."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise SuiteError(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > MOST_BYTES:
        raise SuiteError(f"{path} is larger than {MOST_BYTES // 2**20} MiB; give a part of it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SuiteError(f"{path.name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8.") from None
    if not text.strip():
        raise SuiteError(f"{path} is empty, so there is nothing to read.")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SuiteError(f"{path.name}:{line}: a NUL character; a file that was cut off by a crash ends like this.")
    return text


def unlike_a_formula(cell: object) -> object:
    """A cell as a spreadsheet shows it: a text that begins like a formula gets an apostrophe, a number does not.

    So does a text in which apostrophes come before such a beginning: take one away from every cell that begins so, and
    each is again what it was.

    >>> [unlike_a_formula(cell) for cell in ("=1+1", "'=1+1", "-1.5", -1.5, "'90s", "tp2+sp")]
    ["'=1+1", "''=1+1", '-1.5', -1.5, "'90s", 'tp2+sp']
    """
    if type(cell) is not str or not _FORMULA.match(cell) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"
