"""What a report draws: one file a chart, found by its name.

A chart picks its own rows and shows itself only when they say something. Its docstring has a section *How to read it*,
which becomes the caption. It draws panels, each a figure of its own with the table of what it shows, so that a page can
set them side by side or, on a phone, below each other, say what stands where one points, and lead home to the case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from clusterbench.cases import Reading
from clusterbench.discover import things
from clusterbench.drawing.panel import Panel

Data = TypeVar("Data")

CAPTION = "How to read it"


class Chart(ABC, Generic[Data]):
    """A question to what was read of a run, and its picture.

    Attributes
    ----------
    title
        What is drawn against what.
    place
        Charts stand in the report from low to high. The first that has an answer gives the report's own.
    is_aside
        Whether its answer is about something beside the suite's question, and so never the report's own.
    """

    title: ClassVar[str]
    place: ClassVar[int]
    is_aside: ClassVar[bool] = False

    @abstractmethod
    def select(self, reading: Reading) -> Data | None:
        """What is to be drawn; None where nothing that was read is to be shown so."""

    @abstractmethod
    def draw(self, data: Data) -> list[Panel]:
        """The panels, made with the tools of ``drawing/`` so that all look alike."""

    def answer(self, data: Data) -> str:
        """What the chart says in one sentence with measured figures, or nothing."""
        return ""

    def left_out(self, data: Data) -> str:
        """A sentence about what was too much to draw, or nothing."""
        return ""


def charts() -> dict[str, type[Chart[object]]]:
    """All charts by name, in the order of the report."""
    found: dict[str, type[Chart[object]]] = things("clusterbench.charts", Chart)
    return dict(sorted(found.items(), key=lambda item: (item[1].place, item[0])))


def curves_note(found: int, drawn: int, what: str, others: str = "all are in the table") -> str:
    """Says what was too much to draw, and where the ``others`` are."""
    return f"Drawn are the first {drawn} of {found:,} {what}; {others}." if found > drawn else ""
