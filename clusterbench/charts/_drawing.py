"""One look for all charts, and SVG that takes its colours from the page around it."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from clusterbench.charts._panel import Area, Column, Entry, Panel
from clusterbench.errors import LayoutError
from clusterbench.layout import ParallelLayout
from clusterbench.rows import Row, moved, moved_sentence
from clusterbench.units import Scale, digits, scale

INK, MUTED, GRID, PAPER = "#1b2028", "#66707c", "#d9dee5", "#fdfdfe"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#a97d00", "#4aa5d8", "#7a828c", "#8c564b")
"""After Okabe and Ito: told apart with every kind of colour vision. Shapes and dashes differ as well."""

MOST_PLACES = 400
"""Entries of a panel that can be pointed at, and that its table shows."""

MOST_WORDS = 400
_POINT = 12.0  # points of type: as wide as a pointer hits it

LONGEST_AT_AN_END = 24
"""Letters of a curve's name beside its end; longer names take the width of the axes."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))

# The page's style sheet sets these, for light and for dark; a figure on its own keeps the light ones.
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    **{colour: f"--series-{number}" for number, colour in enumerate(PALETTE)},
}
# Keys are matplotlib's; its stubs list every one of them in a type that no plain dict fits.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 8.5,
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


@dataclass(frozen=True)
class Mark:
    """One point of a curve; ``value`` is None where the case ended otherwise, and ``status`` then says how.

    ``hosts``, apart by spaces, are those on which its ``world_size`` ranks ran; ``case`` is the id of its case.
    """

    x: float
    value: float | None
    low: float | None = None
    high: float | None = None
    expected: float | None = None
    status: str = "ok"
    world_size: int = 0
    hosts: str = ""
    case: str = ""


@dataclass(frozen=True)
class Series:
    name: str
    marks: tuple[Mark, ...]

    @property
    def measured(self) -> list[Mark]:
        return [mark for mark in self.marks if mark.value is not None]

    @property
    def moved(self) -> list[tuple[Mark, str]]:
        """Points that ran on other hosts than the smaller ones, each with the hosts of those."""
        return moved(sorted(self.measured, key=lambda mark: (mark.world_size, mark.x)))


def mark(x: float, row: Row) -> Mark:
    return Mark(x, row.value, row.low, row.high, row.expected, row.status, row.world_size, row.hosts, row.case)


@cache
def layout_of(text: str) -> ParallelLayout | None:
    try:
        return ParallelLayout.parse(text)
    except LayoutError:
        return None


def canvas(title: str, width: float = 5.2, height: float = 3.3) -> tuple[Figure, Axes]:
    """An empty figure in the common style, with one pair of axes."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
    return figure, axes


def lines(
    title: str,
    series: Sequence[Series],
    unit: str,
    x_ticks: Mapping[float, str],
    *,
    x_label: str,
    logarithmic: bool = False,
    ideal: float | None = None,
    ideal_name: str = "ideal",
    levels: Mapping[str, float] | None = None,
) -> Panel:
    """Curves with their low and high, named at their ends, with a cross where a case has no figure.

    ``ideal`` draws a dotted level, and each of ``levels`` another. Expected values are hollow diamonds. A point that
    ran on other hosts than the smaller ones is hollow, and a line below the axes says so.
    """
    # One curve with a long name is named above the axes: at its end the name would take their width.
    is_named_above = len(series) == 1 and len(series[0].name) > 12
    figure, axes = canvas(f"{title}: {series[0].name}" if is_named_above else title)
    marks = [mark for one in series for mark in one.marks]
    values = [value for mark in marks for value in (mark.value, mark.high, mark.expected) if value is not None]
    dotted = {**(levels or {}), **({ideal_name: ideal} if ideal is not None else {})}
    of = scale(unit, [*values, *dotted.values()])
    positions = sorted(x_ticks)
    place = {x: position for position, x in enumerate(positions)}
    for level in dotted.values():
        axes.axhline(of(level), color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    for number, one in enumerate(series):
        _line(axes, one, number, of, place)
    if logarithmic:
        positive = [of(value) for value in [*values, *(levels or {}).values()] if value > 0] or [1.0]
        # Limits first: scaling to one value repeated is a warning on a logarithmic axis.
        axes.set_ylim(min(positive) / 1.6, max(positive) * 1.6)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: digits(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        top = max([of(value) for value in [*values, *dotted.values()]], default=1.0)
        axes.set_ylim(0, top * 1.16 or 1)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: digits(value)))
    step = max(1, math.ceil(len(positions) / 6)) if len(positions) > 8 else 1
    axes.set_xticks(range(0, len(positions), step), [legible(x_ticks[x]) for x in positions[::step]])
    axes.set_xlim(-0.35, len(positions) - 0.65)
    axes.set_xlabel(x_label)
    axes.set_ylabel(of.unit)
    bottom, top = axes.get_ylim()

    def height(value: float | None) -> float:
        """Where a value stands between the foot and the top of the axes, from 0 to 1."""
        shown = max(of(value or 0.0), bottom)
        return math.log(shown / bottom) / math.log(top / bottom) if logarithmic else (shown - bottom) / (top - bottom)

    if len(positions) <= 6 and len(series) <= 2:
        _value_labels(axes, series, of, place)
    heights = {one.name: [(place[mark.x], height(mark.value)) for mark in one.measured] for one in series}
    _missing(axes, series, place, [point for points in heights.values() for point in points])
    ends = [(max(points)[1], number, name) for number, (name, points) in enumerate(heights.items()) if points]
    if len(series) > 1 and max(len(one.name) for one in series) > LONGEST_AT_AN_END:
        _names_below(figure, series)
        ends = []
    ends = [] if is_named_above else ends
    _end_labels(axes, [*ends, *((height(level), None, name) for name, level in dotted.items() if level)])
    _say_what_moved(figure, series)
    return Panel(figure, _columns(x_label, unit), tuple(_entries(series, x_ticks, of, place)))


def _columns(x_label: str, unit: str) -> tuple[Column, ...]:
    numbers = (Column(name, unit) for name in ("value", "low", "high", "expected"))
    return Column("curve"), Column(x_label), *numbers, Column("outcome")


def _entries(
    series: Sequence[Series], x_ticks: Mapping[float, str], of: Scale, place: Mapping[float, int]
) -> Iterator[Entry]:
    for one in series:
        for mark in one.marks:
            gap = "" if mark.value is not None else mark.status.replace("_", " ")
            x, y = place[mark.x], None if mark.value is None else of(mark.value)
            yield Entry(
                (one.name, x_ticks[mark.x], mark.value, mark.low, mark.high, mark.expected, gap),
                mark.case,
                None if y is None else (x, y, x, y),
            )


def _names_below(figure: Figure, series: Sequence[Series]) -> None:
    """Names too long for the ends of their curves, one below the other under the axes."""
    keys = [
        Line2D(
            [],
            [],
            color=PALETTE[number % len(PALETTE)],
            linestyle=DASHES[number % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
        )
        for number in range(len(series))
    ]
    names = [legible(one.name) for one in series]
    figure.legend(keys, names, loc="outside lower left", frameon=False, fontsize=7.5, labelcolor=INK)
    figure.set_figheight(figure.get_figheight() + 0.17 * len(series))


def _line(axes: Axes, one: Series, number: int, of: Scale, place: Mapping[float, int]) -> None:
    colour, shape = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    marks = sorted(one.marks, key=lambda mark: mark.x)
    x = [place[mark.x] for mark in marks]
    y = [math.nan if mark.value is None else of(mark.value) for mark in marks]
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=DASHES[number % len(DASHES)],
        marker=shape if len(marks) <= 40 else "",
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
        zorder=3,
    )
    elsewhere = [(place[mark.x], of(mark.value)) for mark, _ in one.moved if mark.value is not None]
    if elsewhere:
        axes.plot(
            *zip(*elsewhere, strict=True), linestyle="", marker=shape, markersize=7, markerfacecolor=PAPER,
            markeredgecolor=colour, markeredgewidth=1.5, zorder=3.5,
        )  # fmt: skip
    spread = [
        (place[mark.x], of(mark.low), of(mark.high))
        for mark in marks
        if mark.value is not None and mark.low is not None and mark.high is not None
    ]
    if spread:
        axes.vlines(*zip(*spread, strict=True), color=colour, linewidth=4, alpha=0.3, zorder=2)
    expected = [(place[mark.x], of(mark.expected)) for mark in marks if mark.expected is not None]
    if expected:
        axes.plot(
            *zip(*expected, strict=True), linestyle="", marker="D", markersize=6, markerfacecolor="none",
            markeredgecolor=INK, markeredgewidth=0.9, zorder=4,
        )  # fmt: skip


def _say_what_moved(figure: Figure, series: Sequence[Series]) -> None:
    """One line for each size that ran on other hosts: between it and the others lies the difference of hosts, too."""
    said = dict.fromkeys(
        moved_sentence(mark.world_size, mark.hosts, before) for one in series for mark, before in one.moved
    )
    if said:
        more = [f"and {len(said) - 3} more"] if len(said) > 3 else []
        text = "\n".join([*(f"hollow: {sentence}" for sentence in list(said)[:3]), *more])
        figure.supxlabel(text, x=0.01, ha="left", fontsize=7.5, color=MUTED)


def _missing(
    axes: Axes, series: Sequence[Series], place: Mapping[float, int], points: Sequence[tuple[int, float]]
) -> None:
    """A cross for every case without a figure, where the curves leave room: a gap must have a reason."""
    crowd: dict[float, int] = {}
    for number, one in enumerate(series):
        for gap in one.marks:
            if gap.value is not None:
                continue
            shift = crowd.get(gap.x, 0)
            crowd[gap.x] = shift + 1
            near = [height for position, height in points if abs(position - place[gap.x]) <= 1]
            at_top = bool(near) and sum(near) / len(near) < 0.5
            x, colour = place[gap.x] + 0.16 * shift, PALETTE[number % len(PALETTE)]
            across = axes.get_xaxis_transform()
            axes.plot(
                [x], [0.95 if at_top else 0.04], "x", color=colour, transform=across, markersize=6, markeredgewidth=1.8
            )
            axes.text(
                x, 0.90 if at_top else 0.09, gap.status.replace("_", " "), transform=across, color=colour, rotation=90,
                fontsize=7.5, ha="center", va="top" if at_top else "bottom",
            )  # fmt: skip


def _value_labels(axes: Axes, series: Sequence[Series], of: Scale, place: Mapping[float, int]) -> None:
    """Figures at the points: the upper curve's above, the lower curve's below unless the axis is there."""
    bottom, top = axes.get_ylim()
    near = bottom + 0.1 * (top - bottom)
    for x, position in place.items():
        here = sorted(
            ((of(mark.value), number) for number, one in enumerate(series) for mark in one.marks
             if mark.x == x and mark.value is not None),
            reverse=True,
        )  # fmt: skip
        for order, (value, number) in enumerate(here):
            is_below = order > 0
            if is_below and (digits(value, 3) == digits(here[0][0], 3) or value < near):
                continue
            axes.annotate(
                digits(value, 3), (position, value), (0, -8 if is_below else 7), textcoords="offset points",
                ha="center", va="top" if is_below else "bottom", fontsize=7.5, color=PALETTE[number % len(PALETTE)],
            )  # fmt: skip


def _end_labels(axes: Axes, ends: Sequence[tuple[float, int | None, str]]) -> None:
    """Names at the right ends of the curves, from the lowest up, moved apart where they would touch, and cut where they
    would take the curves' room."""
    apart, previous = 0.07, -1.0
    for height, number, name in sorted(ends, key=lambda end: end[0]):
        previous = max(height, previous + apart)
        axes.annotate(
            legible(name, 48), (1.0, previous), (4, 0), xycoords="axes fraction", textcoords="offset points",
            va="center", color=MUTED if number is None else PALETTE[number % len(PALETTE)], fontsize=8.5,
            fontweight="normal" if number is None else "bold", annotation_clip=False,
        )  # fmt: skip


def bars(
    title: str,
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float | None]],
    unit: str,
    *,
    expected: Mapping[str, Sequence[float | None]] | None = None,
    markers: Sequence[float | None] = (),
    marker_name: str = "formula",
    missing: Mapping[int, str] | None = None,
    cases: Sequence[str] = (),
    limit: tuple[str, float] | None = None,
) -> Panel:
    """Horizontal stacked bars, the first label on top.

    Parameters
    ----------
    parts, expected
        By name and bar. What was expected of a part is a tick, where the part should have ended.
    markers
        A hollow diamond for each bar: a total that is not the sum of the parts.
    missing
        How a bar without a figure ended.
    cases
        The id of each bar's case.
    limit
        The name of the most that there is, and how much it is: a line across the bars, or, where it is far beyond them,
        words at the axis.
    """
    num_bars, labels = len(labels), [legible(label) for label in labels]
    # Long names would leave the bars no room.
    width = 5.2 + 0.055 * max(0, max(map(len, labels), default=0) - 24)
    figure, axes = canvas(title, width, height=max(1.9, 1.25 + 0.29 * num_bars))
    totals = [sum(values[bar] or 0.0 for values in parts.values()) for bar in range(num_bars)]
    marked = [value for value in markers if value is not None]
    of = scale(unit, [*totals, *marked])
    rows = range(num_bars)
    left = [0.0] * num_bars
    ticks: list[tuple[float, int]] = []
    for number, (name, values) in enumerate(parts.items()):
        widths = [of(value or 0.0) for value in values]
        axes.barh(
            rows, widths, 0.66, left, color=PALETTE[number % len(PALETTE)], edgecolor=PAPER, linewidth=0.7, label=name
        )
        planned = (expected or {}).get(name, ())
        ticks += [(left[bar] + of(value), bar) for bar, value in enumerate(planned) if value is not None]
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for bar, total in enumerate(totals):
        if missing and bar in missing:
            axes.annotate(
                f"× {missing[bar].replace('_', ' ')}", (0, bar), (4, 0), textcoords="offset points", va="center",
                color=MUTED, fontsize=7.5,
            )  # fmt: skip
        elif total:
            marker = markers[bar] if markers else None
            shown = total if expected is None or marker is None else marker
            axes.annotate(
                of.text(shown, 3), (max(of(total), of(marker or 0.0)), bar),
                (7, 0), textcoords="offset points", va="center", fontsize=7.5, color=INK,
            )  # fmt: skip
    if ticks:
        axes.plot(
            *zip(*ticks, strict=True), linestyle="", marker="|", markersize=15, markeredgecolor=INK,
            markeredgewidth=1.3, label="expected", zorder=3,
        )  # fmt: skip
    if marked:
        at = [(of(value), bar) for bar, value in enumerate(markers) if value is not None]
        axes.plot(
            *zip(*at, strict=True), linestyle="", marker="D", markersize=5.5, markerfacecolor=PAPER,
            markeredgecolor=INK, markeredgewidth=1, label=marker_name, zorder=4,
        )  # fmt: skip
    axes.set_yticks(rows, labels)
    axes.set_ylim(num_bars - 0.4, -0.6)
    axes.set_xlim(0, max([of(total) for total in totals] + [of(value) for value in marked], default=1.0) * 1.15 or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: digits(value)))
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.set_xlabel(of.unit)
    if limit:
        _limit(axes, limit[0], of(limit[1]), of.unit)
    if len(parts) > 1 or marked or ticks:
        handles, names = axes.get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda number: names[number] not in parts)
        figure.legend(
            [handles[number] for number in order], [names[number] for number in order], loc="outside lower left",
            ncols=4, frameon=False, fontsize=8,
            handlelength=1.0, handleheight=0.8, markerscale=0.75, columnspacing=1.2, labelcolor=INK,
        )  # fmt: skip
    columns: dict[Column, Sequence[float | None]] = {}
    for name, values in parts.items():
        columns[Column(name, unit)] = values
        if expected and name in expected:
            columns[Column(f"{name}, expected", unit)] = expected[name]
    if len(parts) > 1:
        columns[Column("sum", unit)] = [total or None for total in totals]
    if markers:
        columns[Column(marker_name, unit)] = markers
    entries = tuple(
        Entry(
            (label, *(values[bar] for values in columns.values()), (missing or {}).get(bar, "").replace("_", " ")),
            cases[bar] if cases else "",
            (0.0, bar - 0.4, max(of(totals[bar]), of((markers[bar] if markers else None) or 0.0)), bar + 0.4),
        )
        for bar, label in enumerate(labels)
    )
    return Panel(figure, (Column("bar"), *columns, Column("outcome")), entries)


def _limit(axes: Axes, name: str, at: float, unit: str) -> None:
    right = axes.get_xlim()[1]
    if at > 4 * right:
        axes.set_xlabel(f"{unit} ({legible(name)} is {digits(at, 3)} {unit})")
        return
    axes.axvline(at, color=INK, linewidth=1.1, linestyle=(0, (1, 1.5)))
    axes.set_xlim(0, max(right, 1.04 * at))
    axes.annotate(
        f"{legible(name)} {digits(at, 3)}", (at, 1), (0, 2), xycoords=axes.get_xaxis_transform(),
        textcoords="offset points", ha="right", fontsize=7.5, color=MUTED,
    )  # fmt: skip


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
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(kinds), frameon=False, fontsize=7.5)
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


def svg(panel: Panel, name: str, label: str, most_places: int = MOST_PLACES) -> str:
    """The figure as an ``<svg>`` element to be put into a page, small, the same bytes every time.

    Above the drawing lies a clear rectangle for each entry that has a place, with its number as ``data-entry`` and, as
    its ``title``, what is said of it. Of more than ``most_places`` only the first can be pointed at.

    Parameters
    ----------
    name
        Unique in the page: every id starts with it, since two figures would otherwise share theirs.
    label
        What a screen reader says.
    """
    text, figure = io.StringIO(), panel.figure
    for words in figure.findobj(Text):
        words.set_parse_math(False)  # a name with two dollar signs is no formula
        words.set_text(legible(words.get_text()))
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # The page is drawn with the reader's fonts, whatever this machine's lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    found = text.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", found, flags=re.DOTALL)
    used = set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', found))
    found = re.sub(r' id="([^"]+)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", found)
    found = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", found)
    for colour, variable in _VARIABLES.items():
        found = found.replace(colour, f"var({variable}, {colour})")
    # A hundredth of a point is finer than any screen. Only inside tags: what is between them is for reading.
    found = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\d+\.\d{2})\d+", r"\1", tag[0]), found)
    found = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", re.sub(r">\s+<", "><", found))
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', found)
    assert size is not None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{size[0][9:-1]}" '
        f'role="img" aria-label="{_attribute(label)}">'
    )
    body = found[found.index(">") + 1 :].strip().removesuffix("</svg>")
    return f"{head}{body}{''.join(_places(panel, most_places))}</svg>"


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


def legible(text: str, most: int = 72) -> str:
    """Names as they can be drawn: each line cut where it would leave the figure no room, and all of it printable.

    >>> legible("tp2 \\x1b[31m"), len(legible("x" * 1000))
    ('tp2 \ufffd[31m', 72)
    """
    lines = ("".join(one if one.isprintable() else "\ufffd" for one in line) for line in text.split("\n"))
    return "\n".join(line if len(line) <= most else f"{line[: most - 1]}…" for line in lines)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
