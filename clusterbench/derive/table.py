"""The long table as text: the lines of rows.csv, and the cells of a data frame."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from types import SimpleNamespace

from clusterbench.csv_lines import unlike_a_formula
from clusterbench.rows import COLUMNS, DETAILS, Row

Cells = tuple[object, ...]


def csv_of(rows: Sequence[Row]) -> Iterator[str]:
    """The head, and the lines of each case together, with their ends."""
    options_of_all = _options(rows)
    yield f"{_quoted([[*COLUMNS, *options_of_all]])[0]}\n"
    named: dict[tuple[str, str, int], str] = {}
    for about, of_case, options in _by_case(rows, options_of_all):
        # What the rows of a case share is put into words once, and what a figure is called once for all cases.
        start, end = _text(*about)[1:], _text(*options)
        lines = []
        for row in of_case:
            value, low, high, expected = row.value, row.low, row.high, row.expected
            # By what it is, not by what it holds: the rows of a figure share one detail.
            key = row.metric, row.unit, id(row.detail)
            if key not in named:
                named[key] = _shared(row.metric, *_details(*row.detail.items()), row.unit)
            lines.append(
                f"{start}{named[key]},{'' if value is None else value},{'' if low is None else low},"
                f"{'' if high is None else high},{row.iterations},{'' if expected is None else expected}"
                f"{_shared(row.basis)}{end}\n"
            )
        yield "".join(lines)


def _text(*cells: object) -> str:
    """Cells of a table, a comma before each."""
    return _quoted([("", *cells)])[0]


_shared = lru_cache(maxsize=2**14)(_text)


@lru_cache(maxsize=2**14)
def _details(*detail: tuple[str, str]) -> Cells:
    """The cells of :data:`DETAILS`."""
    named = dict(detail)
    return tuple(named.get(name, "") for name in DETAILS)


def _quoted(lines: Iterable[Sequence[object]]) -> list[str]:
    written: list[str] = []
    safe = ([unlike_a_formula(cell) for cell in line] for line in lines)
    # A cell is quoted if it holds a character of the line's end: a return, too, ends a line where a table is read.
    csv.writer(SimpleNamespace(write=written.append), lineterminator="\r\n").writerows(safe)
    return [line[:-2] for line in written]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The fixed columns, and behind them each option that a case has."""
    return [*COLUMNS, *_options(rows)]


def _options(rows: Sequence[Row]) -> list[str]:
    # Rows of a case share one point object, so this looks at cases, not at rows.
    points = {id(row.point): row.point for row in rows}
    return sorted({name for point in points.values() for name in point} - set(COLUMNS))


def lines_of(rows: Sequence[Row]) -> Iterator[Cells]:
    """The cells of each row, in the order of :func:`columns_of`."""
    for about, of_case, options in _by_case(rows, _options(rows)):
        for row in of_case:
            figure = row.value, row.low, row.high, row.iterations, row.expected, row.basis
            yield (*about, row.metric, *_details(*row.detail.items()), row.unit, *figure, *options)


def _by_case(rows: Sequence[Row], options: Sequence[str]) -> Iterator[tuple[Cells, list[Row], Cells]]:
    """What rows that follow each other share, these rows, and the options they share; cells in order of columns."""
    for _, group in groupby(rows, attrgetter("run", "case")):
        of_case = list(group)
        case, point = of_case[0], of_case[0].point
        about = (
            *(case.run, case.case, case.hash, case.benchmark, case.version, case.status),
            *(point.get("shape") or "", point.get("layout") or ""),
            *(case.num_nodes, case.world_size, case.hosts, case.device),
        )
        yield about, of_case, tuple(point.get(name) for name in options)
