"""Rows of a CSV file with the lines they start in, and cells of one; a file that is cut is one error."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from clusterbench.errors import SuiteError
from clusterbench.text_files import read_text

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def rows_of(path: Path, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Every row that is not empty, with the line it starts in."""
    text = read_text(path)
    if not text.endswith("\n"):
        last = text.count("\n") + 1
        raise SuiteError(
            f"{path.name}:{last}: the last line has no end, so it may be cut in the middle of a number.\n"
            "hint: add the end of the line if the row is whole"
        )
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
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
