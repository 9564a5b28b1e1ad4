"""A chart's panels as a page shows them: the figure, the table behind it, and what the page's script needs of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from clusterbench.charts import Chart
from clusterbench.drawing.panel import Cell, Panel, Story
from clusterbench.drawing.svg import MOST_PLACES, svg
from clusterbench.report.table import case_link, packed
from clusterbench.words import short

MOST_LETTERS = 160
"""Of one cell of a table behind a figure."""

MOST_TOLD = 200
"""Lines of one story."""

MOST_ENTRIES = 20_000
"""Of one panel in the page; what is beyond them is in rows.csv."""

Line = tuple[list[tuple[str, bool]], str, str]
"""The cells of a line, each with whether it is a number; what its case is called, and where the page shows that."""


@dataclass(frozen=True)
class Shown:
    """One panel on the page. ``name`` is unique there; ``width`` is in points; ``data`` is for the script."""

    name: str
    title: str
    figure: Markup
    width: int
    columns: list[tuple[str, bool]]
    lines: list[Line]
    left_out: str
    cases: frozenset[str]
    data: dict[str, Any]


def shown(name: str, chart: Chart[object], data: object, places: Mapping[str, int]) -> Iterator[Shown]:
    """The panels of a chart; ``places`` says which line of the table of cases an id has."""
    panels = chart.draw(data)
    for number, panel in enumerate(panels):
        of_panel, kinds = f"{name}-{number}", _kinds(panel)
        filled = [
            place for place in range(len(kinds)) if any(entry.cells[place] not in (None, "") for entry in panel.entries)
        ]
        yield Shown(
            name=of_panel,
            title=panel.title or chart.title,
            figure=Markup(svg(panel, of_panel, _label(chart.title, number, len(panels)))),
            width=panel.width,
            columns=[(panel.columns[number].name, kinds[number]) for number in filled],
            lines=list(_lines(panel, filled, places)),
            left_out=_left_out(len(panel.entries)),
            cases=frozenset(entry.case for entry in panel.entries if entry.case),
            data=_packed(of_panel, panel, places),
        )


def _label(chart: str, number: int, of: int) -> str:
    """``Peak memory by category, panel 2 of 3``: words of ours alone, as what a run says stands in no attribute."""
    return f"{chart}, panel {number + 1} of {of}" if of > 1 else chart


def _kinds(panel: Panel) -> list[bool]:
    """Which columns hold numbers, and numbers only."""
    columns: list[list[Cell]] = [
        [entry.cells[number] for entry in panel.entries] for number in range(len(panel.columns))
    ]
    return [not any(isinstance(cell, str) for cell in cells) for cells in columns]


def _lines(panel: Panel, filled: Sequence[int], places: Mapping[str, int]) -> Iterator[Line]:
    """``filled`` are the columns that any line has something in."""
    for entry in panel.entries[:MOST_PLACES]:
        pairs = [(panel.columns[number], entry.cells[number]) for number in filled]
        cells = [(_cut(column.text(cell)), not isinstance(cell, str)) for column, cell in pairs]
        yield cells, _cut(entry.case), case_link(entry.case, places)


def _cut(text: str) -> str:
    return short(text, MOST_LETTERS, "…")


def _left_out(count: int) -> str:
    if count <= MOST_PLACES:
        return ""
    rest = "the CSV has all" if count <= MOST_ENTRIES else f"the CSV has {MOST_ENTRIES:,}, and rows.csv all figures"
    return f"The first {MOST_PLACES} of {count:,} lines are listed; {rest}."


def _packed(name: str, panel: Panel, places: Mapping[str, int]) -> dict[str, Any]:
    entries = panel.entries[:MOST_ENTRIES]
    columns = [
        {
            "name": column.name,
            "unit": column.unit,
            **packed([_base(entry.cells[number]) for entry in entries], is_number),
        }
        for number, (column, is_number) in enumerate(zip(panel.columns, _kinds(panel), strict=True))
    ]
    return {
        "name": name,
        "title": panel.title,
        "columns": columns,
        "cases": [places.get(entry.case, -1) for entry in entries] if any(entry.case for entry in entries) else [],
        "stories": {
            number: _told(entry.story, places)
            for number, entry in enumerate(panel.entries[:MOST_PLACES])
            if entry.story is not None
        },
    }


def _base(cell: Cell) -> Cell:
    """Nine digits: more than any clock has."""
    if cell is None or isinstance(cell, str):
        return cell
    value = float(f"{cell:.9g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _told(story: Story, places: Mapping[str, int]) -> dict[str, Any]:
    more = len(story.lines) - MOST_TOLD
    return {
        "title": _cut(story.title),
        "sentences": [
            *story.sentences,
            *([f"The first {MOST_TOLD} of {len(story.lines):,} lines."] if more > 0 else []),
        ],
        "columns": list(story.columns),
        "lines": [[_cut(cell) for cell in line] for line in story.lines[:MOST_TOLD]],
        "cases": [places.get(case, -1) for case in story.cases[:MOST_TOLD]],
    }
