"""How the package writes: words of the field, counts, lists and long texts in a sentence, tables in a terminal,
sections of docstrings."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from clusterbench.terminal import columns as columns_of_terminal
from clusterbench.terminal import of_terminal


@dataclass(frozen=True)
class Word:
    """A word of the field and what it means, in a sentence, with its formula or its source.

    ``also`` is a pattern for other ways to write it: ``tp2`` in the name of a layout, ``MiB`` beside ``GiB``.
    """

    name: str
    meaning: str
    also: str = ""

    @property
    def anchor(self) -> str:
        return f"word-{re.sub('[^a-z0-9]+', '-', self.name.lower())}"

    def is_among(self, tokens: Set[str]) -> bool:
        return self.name in tokens or (bool(self.also) and any(map(re.compile(self.also).fullmatch, tokens)))


_HEADING = re.compile(r"^(?P<title>\S[^\n]*)\n-{3,}$", re.MULTILINE)


def plural(number: int, noun: str, many: str = "") -> str:
    """A count with its noun.

    >>> plural(1, "node"), plural(1024, "rank"), plural(0, "repeat"), plural(2, "entry", "entries")
    ('1 node', '1,024 ranks', '0 repeats', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"


def listed(noun: str, names: Collection[object]) -> str:
    """A noun with the names of all that it stands for.

    >>> listed("host", ["n1"]), listed("stage", [0, 4])
    ('host n1', 'stages 0, 4')
    """
    return f"{noun if len(names) == 1 else f'{noun}s'} {', '.join(map(str, names))}"


def few(names: Collection[object], most: int = 4, comma: str = ", ") -> str:
    """The first ``most`` of what may be many, with ``comma`` between them, and how many are left.

    >>> few(["n1", "n2"]), few(range(6))
    ('n1, n2', '0, 1, 2, 3 and 2 more')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return comma.join(map(str, islice(names, most))) + more


def short(text: str, most: int = 80, mark: str = "...") -> str:
    """A text of at most ``most`` characters: what is cut off becomes ``mark``.

    >>> short("peak_memory", 8), short("peak_memory", 8, "…"), short("busbw", 8)
    ('peak_...', 'peak_me…', 'busbw')
    """
    return text if len(text) <= most else text[: most - len(mark)] + mark


LEGIBLE = 72
"""Characters of a line that a figure has room for."""


def legible(text: str, most: int = LEGIBLE) -> str:
    """Names as they can be drawn: each line cut where it would leave the figure no room, and all of it printable.

    >>> legible("tp2 \\x1b[31m"), len(legible("x" * 1000))
    ('tp2 \ufffd[31m', 72)
    """
    lines = map(_printable, text.split("\n"))
    return "\n".join(line if len(line) <= most else f"{line[: most - 1]}…" for line in lines)


def _printable(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


def aligned(header: Sequence[str], rows: Iterable[Sequence[object]], units: Sequence[str] = ()) -> list[str]:
    """Lines of a table for eyes and for programs: ``#`` before what is not data, names over units, spaces between.

    Columns in which every cell is a number are flush right. What a terminal has no room for stands in a second line of
    each row, further in.

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

    parts = _in_room(widths, of_terminal(sys.stdout))

    def line(row: Sequence[str], number: int, start: str) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return (start + _FURTHER_IN * (number > 0) + "  ".join(padded[parts[number]])).rstrip()

    of_heads = [line(row, number, "# ") for number in range(len(parts)) for row in heads]
    of_rows = [line(row, number, "  ") for row in cells for number in range(len(parts))]
    return of_heads + of_rows if len(parts) == 1 else [said for said in of_heads + of_rows if said not in ("", "#")]


_FURTHER_IN = " " * 4


def _in_room(widths: Sequence[int], room: int | None) -> list[slice]:
    """Which columns stand beside each other, of so many as a row has: all of them where nothing says how wide it is."""
    parts, first, taken = [], 0, 2
    for column, width in enumerate(widths):
        if room is not None and column > first and taken + width > room:
            parts.append(slice(first, column))
            first, taken = column, 2 + len(_FURTHER_IN)
        taken += width + 2
    return [*parts, slice(first, len(widths))]


def comment(text: str, indent: str = "", width: int | None = None) -> list[str]:
    """Prose between tables, wrapped; ``indent`` stands before every line but the first.

    It is as wide as the terminal of stdout takes, see :func:`clusterbench.terminal.columns`, where no width is named.
    """
    room = (width or columns_of_terminal()) - 2 - len(indent)
    lines = (textwrap.wrap(part, room, break_long_words=False, break_on_hyphens=False) for part in text.splitlines())
    flat = [line for part in lines for line in part]
    return [f"# {line}" if number == 0 else f"# {indent}{line}" for number, line in enumerate(flat)]


def sections(thing: type) -> dict[str, str]:
    """Paragraphs under each underlined heading of a docstring, lines joined: a chart's caption, a diagnosis's advice.

    >>> class Kettle:
    ...     '''Boils water.
    ...
    ...     How to read it
    ...     --------------
    ...     Steam means
    ...     hot.
    ...     '''
    >>> sections(Kettle)
    {'How to read it': 'Steam means hot.'}
    """
    text = inspect.getdoc(thing) or ""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading["title"]: " ".join(text[heading.end() : end].split())
        for heading, end in zip(headings, ends, strict=False)
    }


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return False
    return True
