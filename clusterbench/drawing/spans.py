"""What ran when, line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from clusterbench.drawing.panel import Area, Column, Entry, Panel
from clusterbench.drawing.style import GRID, INK, LETTERS, PALETTE, PAPER, canvas
from clusterbench.units import scale
from clusterbench.words import legible


@dataclass(frozen=True)
class Span:
    """Something that took from start to end on one line of a timeline."""

    line: int
    start_s: float
    end_s: float
    kind: str


def spans(
    title: str,
    lines: Sequence[str],
    drawn: Sequence[Span],
    kinds: Mapping[str, str],
    case: str = "",
    *,
    pale: Sequence[str] = (),
) -> Panel:
    """A timeline: a line for each label, the first on top, and on it what ran when.

    Parameters
    ----------
    kinds
        What each kind of span is called in the legend, in the order of its colour.
    pale
        Kinds in which nothing happens: they are thin and grey.
    case
        The id of the case whose timeline it is.
    """
    figure, axes = canvas(title, width=7.2, height=max(1.7, 1.15 + 0.3 * len(lines)))
    of = scale("s", [span.end_s for span in drawn])
    for number, (kind, name) in enumerate(kinds.items()):
        own = [span for span in drawn if span.kind == kind]
        if own:
            high, colour = (0.08, GRID) if kind in pale else (0.35, PALETTE[number])
            boxes = [(of(span.start_s), span.line - high, of(span.end_s), span.line + high) for span in own]
            # All boxes of a kind as one path: a patch for each would be four times the page.
            axes.add_patch(PathPatch(_boxes(boxes), facecolor=colour, edgecolor=PAPER, linewidth=0.4, label=name))
    axes.set_yticks(range(len(lines)), [legible(line) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(0, 1.02 * of(max((span.end_s for span in drawn), default=0.0)) or 1)
    axes.set_xlabel(of.unit)
    axes.grid(visible=False, axis="y")
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(kinds), frameon=False, fontsize=LETTERS,
        labelcolor=INK,
    )  # fmt: skip
    axes.set_title(title, loc="left", pad=22, fontsize=9.5, fontweight="bold")
    entries = tuple(
        Entry(
            (lines[span.line], kinds.get(span.kind, span.kind), span.start_s, span.end_s, span.end_s - span.start_s),
            case,
            (of(span.start_s), span.line - 0.35, of(span.end_s), span.line + 0.35),
        )
        for span in drawn
    )
    times = (Column(name, "s") for name in ("start", "end", "duration"))
    return Panel(figure, (Column("line"), Column("what"), *times), entries)


def _boxes(areas: Sequence[Area]) -> Path:
    corners = [
        corner
        for left, bottom, right, top in areas
        for corner in ((left, bottom), (right, bottom), (right, top), (left, top), (left, bottom))
    ]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(areas)
    return Path(corners, codes)
