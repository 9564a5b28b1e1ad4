"""A figure with its data: each thing it shows is a line of a table, an area to point at, and a link to its case."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterbench.units import UNITS, digits, format_value
from clusterbench.words import few, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | float | None
Area = tuple[float, float, float, float]
"""Left, bottom, right and top in the coordinates of the picture's axes; a point has no width and no height."""


@dataclass(frozen=True)
class Column:
    """Numbers are in ``unit``, a base unit; words have none."""

    name: str
    unit: str = ""

    def text(self, cell: Cell) -> str:
        """As a reader sees it.

        >>> Column("time", "s").text(0.0021), Column("layout").text("tp2"), Column("low", "s").text(None)
        ('2.100 ms', 'tp2', '')
        """
        if cell is None or isinstance(cell, str):
            return cell or ""
        return format_value(cell, self.unit) if self.unit in UNITS else digits(cell)


@dataclass(frozen=True)
class Story:
    """The text of an entry that was chosen: sentences, and a table whose lines may each link to a case.

    ``cases`` holds the id of a line's case, or nothing; it is as long as ``lines``, or empty.
    """

    title: str
    sentences: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    lines: tuple[tuple[str, ...], ...] = ()
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One thing that a panel shows.

    Attributes
    ----------
    cells
        One for each column of the panel.
    case
        The id of the case whose figure it is; empty where it is made of several.
    area
        Where it stands; None where nothing of it is to be seen.
    story
        The text shown when it is chosen.
    """

    cells: tuple[Cell, ...]
    case: str = ""
    area: Area | None = None
    story: Story | None = None


@dataclass(frozen=True)
class Panel:
    """A figure and what it shows; ``entries`` are also the table behind it."""

    figure: Figure
    columns: tuple[Column, ...]
    entries: tuple[Entry, ...]

    @property
    def width(self) -> int:
        """In points: on a page its letters are as large as those of tables, and not larger."""
        return round(72 * self.figure.get_figwidth())

    @property
    def title(self) -> str:
        return " ".join(self.figure.axes[0].get_title(loc="left").split())

    @property
    def summary(self) -> str:
        """What it shows, for who does not see it: how many of each name, and the range of each number.

        ``Peak memory. 2 entries: bar tp1 and 1 more; parameters 20MiB to 40MiB``.
        """
        parts = filter(None, map(self._of_column, range(len(self.columns))))
        return f"{self.title}. {plural(len(self.entries), 'entry', 'entries')}: {'; '.join(parts)}"

    def _of_column(self, number: int) -> str:
        column = self.columns[number]
        cells = [entry.cells[number] for entry in self.entries if entry.cells[number] not in (None, "")]
        numbers = [cell for cell in cells if isinstance(cell, (int, float)) and math.isfinite(cell)]
        if not cells:
            return ""
        if len(numbers) < len(cells):
            return f"{column.name} {few(dict.fromkeys(map(column.text, cells)), 1)}"
        ends = dict.fromkeys(column.text(end) for end in (min(numbers), max(numbers)))
        return f"{column.name} {' to '.join(ends)}"

    def words(self, entry: Entry) -> str:
        """What is said of an entry that is pointed at: what is not a number first, then each number by its name."""
        return "; ".join(self._words(entry))

    def _words(self, entry: Entry) -> Iterator[str]:
        for column, cell in zip(self.columns, entry.cells, strict=True):
            if text := column.text(cell):
                yield text if isinstance(cell, str) else f"{column.name} {text}"
