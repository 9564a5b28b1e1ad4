"""A figure as SVG that takes its colours and its fonts from the page around it."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

from clusterbench.drawing.panel import Area, Panel
from clusterbench.drawing.style import GRID, INK, MUTED, PALETTE, PAPER, STYLE, WORDS
from clusterbench.words import legible

MOST_PLACES = 400
"""Entries of a panel that can be pointed at, and that its table shows."""

MOST_WORDS = 400
_POINT = 12.0  # points of type: as wide as a pointer hits it

# The page's style sheet sets these, for light and for dark; a figure on its own keeps the light ones.
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    **{colour: f"--words-{number}" for number, colour in enumerate(WORDS)},
    **{colour: f"--series-{number}" for number, colour in enumerate(PALETTE)},
}


def svg(panel: Panel, name: str, label: str, most_places: int = MOST_PLACES) -> str:
    """The figure as an ``<svg>`` element to be put into a page, small, the same bytes every time.

    Above the drawing lies a clear rectangle for each entry that has a place, with its number as ``data-entry`` and, as
    its ``title``, what is said of it. Of more than ``most_places`` only the first can be pointed at.

    Parameters
    ----------
    name
        Unique in the page: every id starts with it, since two figures would otherwise share theirs.
    label
        What a screen reader calls it; what it shows, it reads from the panel's summary.
    """
    figure = panel.figure
    for words in figure.findobj(Text):
        words.set_parse_math(False)  # a name with two dollar signs is no formula
        words.set_text(legible(words.get_text()))
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # The page is drawn with the reader's fonts, whatever this machine's lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        text = _drawn(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable}, {colour})")
    # A hundredth of a point is finer than any screen. Only inside tags: what is between them is for reading.
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", re.sub(r">\s+<", "><", text))
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{size[0][9:-1]}" '
        f'role="img" aria-label="{_attribute(label)}" aria-describedby="{name}-shows">'
        f'<desc id="{name}-shows">{_attribute(legible(panel.summary, MOST_WORDS))}</desc>'
    )
    body = text[text.index(">") + 1 :].strip().removesuffix("</svg>")
    return f"{head}{body}{''.join(_places(panel, most_places))}</svg>"


class _Canvas(FigureCanvasBase):
    """What lays the figure out with the renderer that draws it, so that each text is measured once."""

    def __init__(self, figure: Figure, renderer: RendererSVG) -> None:
        super().__init__(figure)
        self._renderer = renderer

    def get_renderer(self) -> RendererSVG:
        return self._renderer


def _drawn(figure: Figure) -> str:
    """What ``savefig`` writes, which draws every figure twice: the first time to lay it out."""
    text = io.StringIO()
    figure.dpi = 72
    width, height = figure.get_size_inches() * 72
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    renderer = RendererSVG(width, height, text, metadata=metadata)  # type: ignore[no-untyped-call]
    _Canvas(figure, renderer)
    figure.draw(renderer)
    renderer.finalize()  # type: ignore[no-untyped-call]
    return text.getvalue()


def _places(panel: Panel, most: int) -> Iterator[str]:
    """Where the entries stand in the figure; of a point as much as a pointer can hit."""
    figure = panel.figure
    axes, width, height = figure.axes[0], figure.get_figwidth() * 72, figure.get_figheight() * 72
    placed = [(number, entry) for number, entry in enumerate(panel.entries) if entry.area is not None][:most]
    if not placed:
        return
    yield '<g class="places">'
    for number, entry in placed:
        assert entry.area is not None
        left, bottom, right, top = entry.area
        (x0, y0), (x1, y1) = (axes.transData.transform(point) / figure.dpi * 72 for point in _corners(entry.area))
        x, y, wide, high = min(x0, x1), height - max(y0, y1), abs(x1 - x0), abs(y1 - y0)
        if not all(map(math.isfinite, (x, y, wide, high))):
            continue
        if left == right:
            x, wide = x - _POINT / 2, _POINT
        if bottom == top:
            y, high = y - _POINT / 2, _POINT
        words = legible(panel.words(entry), MOST_WORDS)
        yield (
            f'<rect data-entry="{number}" x="{max(x, 0):.1f}" y="{max(y, 0):.1f}" width="{min(wide, width):.1f}" '
            f'height="{min(high, height):.1f}" fill="none" pointer-events="all">'
            f"<title>{_attribute(words)}</title></rect>"
        )
    yield "</g>"


def _corners(area: Area) -> tuple[tuple[float, float], tuple[float, float]]:
    left, bottom, right, top = area
    return (left, bottom), (right, top)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
