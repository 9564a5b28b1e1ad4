"""One look for all figures."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clusterbench.words import legible

INK, MUTED, GRID, PAPER = "#1b2028", "#66707c", "#d9dee5", "#fdfdfe"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#a97d00", "#3794c8", "#7a828c", "#8c564b")
"""After Okabe and Ito: told apart with every kind of colour vision, and each stands out of the paper 3 to 1 (WCAG 2.2,
1.4.11). Shapes and dashes differ as well."""

WORDS = ("#0072b2", "#be5400", "#00835f", "#aa4499", "#936d00", "#2d79a4", "#6d747d", "#8c564b")
"""The same for words in these colours, which stand out of the paper 4.5 to 1 (WCAG 2.2, 1.4.3)."""

LETTERS = 8.5
"""Points of letters, but for titles: page.css gives figures so much room that they are never below 8 pixels."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))

# Keys are matplotlib's; its stubs list every one of them in a type that no plain dict fits.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": LETTERS,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


HEADING, LINE = 0.081, 0.16
"""In inches: the width of a letter of a title, and the height of a line of it."""

_LEFT_OF_AXES = 0.5
"""In inches, of most figures: the title begins where the axes do."""


def canvas(title: str, width: float = 5.2, height: float = 3.3) -> tuple[Figure, Axes]:
    """An empty figure in the common style, with one pair of axes.

    Lines of the title that would end outside are wrapped, and the figure grows by what they need.
    """
    asked = legible(title).splitlines()
    lines = [part for line in asked for part in wrap(line, int((width - _LEFT_OF_AXES) / HEADING))]
    title, height = "\n".join(lines), height + LINE * (len(lines) - len(asked))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
    return figure, axes
