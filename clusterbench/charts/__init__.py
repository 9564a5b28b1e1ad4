"""What a report draws: one file a chart, found by its name.

A chart picks its own rows and shows itself only when they say something. Its docstring has a section *How to read it*,
which becomes the caption. It draws panels, each a figure of its own with the table of what it shows, so that a page can
set them side by side or, on a phone, below each other, say what stands where one points, and lead home to the case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from clusterbench.charts._panel import Panel
from clusterbench.discover import things
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import Reading

Data = TypeVar("Data")

CAPTION = "How to read it"


class Chart(ABC, Generic[Data]):
    """A question to the rows, and its picture.

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
    def select(self, rows: Sequence[Row]) -> Data | None:
        """What is to be drawn; None when the rows hold nothing to show."""

    def select_from(self, reading: Reading) -> Data | None:
        """The same from all that was read of a run; for a chart of what no row holds."""
        return self.select(reading.rows)

    @abstractmethod
    def draw(self, data: Data) -> list[Panel]:
        """The panels, made with the tools of ``charts/_drawing.py`` so that all look alike."""

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
