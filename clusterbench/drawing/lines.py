"""Curves over a few sizes, each point the figure of a case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import DASHES, INK, LETTERS, MARKERS, MUTED, PALETTE, PAPER, WORDS, canvas
from clusterbench.rows import Row, moved, moved_sentence
from clusterbench.units import Scale, digits, scale
from clusterbench.words import legible

LONGEST_AT_AN_END, LONGEST = 24, 48
"""Letters of a curve's name beside its end; longer names take the width of the axes. And where any name is cut."""

_LEAST_IN_ONE_UNIT = 1e-3
"""Of the foot of a logarithmic axis: below it each tick has a unit of its own."""
_LETTER = 0.017
"""Width of a letter at a tick, as a share of the axes' width, beside names at the ends of curves that are short."""
_SHORT, _OF_AXES = 12, 74
"""Letters of such a name, and of how many the axes and it are wide together."""


@dataclass(frozen=True)
class Mark:
    """One point of a curve; ``value`` is None where the case ended otherwise, and ``status`` then says how.

    ``hosts``, apart by spaces, are those on which its ``world_size`` ranks ran; ``case`` is the id of its case;
    ``basis`` says what ``expected`` rests on.
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
    basis: str = ""


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
    figure = row.value, row.low, row.high, row.expected
    return Mark(x, *figure, row.status, row.world_size, row.hosts, row.case, row.basis)


@dataclass(frozen=True)
class Lines:
    """Curves with their low and high, named at their ends, with a cross where a case has no figure.

    Points stand as far apart as the logarithms of their ``x``. Expected values are hollow diamonds. A point that ran on
    other hosts than the smaller ones is hollow. Lines below the axes say so.

    Attributes
    ----------
    x_ticks
        What stands at each place of the axis, by the ``x`` of the marks, which are sizes or counts. Where there is no
        room for all, some are left out.
    ideal
        A dotted level, called ``ideal_name``.
    levels
        More of them, by name.
    numbers
        Which colour, marker and dash each curve has, where other figures show some of them; else they come in turn.
    """

    title: str
    series: Sequence[Series]
    unit: str
    x_ticks: Mapping[float, str]
    x_label: str
    logarithmic: bool = False
    ideal: float | None = None
    ideal_name: str = "ideal"
    levels: Mapping[str, float] = field(default_factory=dict)
    numbers: Sequence[int] = ()

    def panel(self) -> Panel:
        figure, axes = canvas(f"{self.title}: {self.series[0].name}" if self._is_named_above else self.title)
        for level in self._dotted.values():
            axes.axhline(self._of(level), color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
        for number, curve in self._numbered:
            _line(axes, curve, number, self._of, self._place)
        self._set_heights(axes)
        self._set_places(axes)
        self._say_names(figure, axes)
        _say_what_is_hollow(figure, self.series)
        return Panel(figure, self._columns, tuple(self._entries()))

    @cached_property
    def _numbered(self) -> list[tuple[int, Series]]:
        return list(zip(self.numbers or range(len(self.series)), self.series, strict=True))

    @cached_property
    def _is_named_above(self) -> bool:
        # One curve with a long name is named above the axes: at its end the name would take their width.
        return len(self.series) == 1 and len(self.series[0].name) > 12

    @cached_property
    def _are_named_below(self) -> bool:
        return len(self.series) > 1 and max(len(curve.name) for curve in self.series) > LONGEST_AT_AN_END

    @property
    def _names_at_the_ends(self) -> list[str]:
        curves = [] if self._is_named_above or self._are_named_below else [curve.name for curve in self.series]
        return [*curves, *self._dotted]

    @cached_property
    def _values(self) -> list[float]:
        marks = [mark for curve in self.series for mark in curve.marks]
        values = (value for mark in marks for value in (mark.value, mark.low, mark.high, mark.expected))
        return [value for value in values if value is not None]

    @cached_property
    def _dotted(self) -> dict[str, float]:
        return {**self.levels, **({self.ideal_name: self.ideal} if self.ideal is not None else {})}

    @cached_property
    def _of(self) -> Scale:
        return scale(self.unit, [*self._values, *self._dotted.values()])

    @cached_property
    def _place(self) -> dict[float, float]:
        """Where each ``x`` stands: from 0 to one less than their number, so that neighbours are 1 apart on average."""
        at = {x: math.log2(x) for x in sorted(self.x_ticks) if x > 0}
        first, last = min(at.values(), default=0.0), max(at.values(), default=0.0)
        if len(at) < len(self.x_ticks) or first == last:  # a size of 0 has no logarithm
            return {x: float(position) for position, x in enumerate(sorted(self.x_ticks))}
        return {x: (place - first) * (len(at) - 1) / (last - first) for x, place in at.items()}

    @cached_property
    def _named(self) -> dict[float, float]:
        """The places whose ticks have room for their labels, first and last before all others."""
        longest = max(len(legible(label)) for label in self.x_ticks.values())
        beside = max((len(legible(name, LONGEST)) for name in self._names_at_the_ends), default=0)
        narrower = (_OF_AXES - _SHORT) / (_OF_AXES - max(_SHORT, beside))
        apart = _LETTER * narrower * (longest + 1) * len(self.x_ticks)
        first, *others = self._place
        named = [first]
        for x in (*others[-1:], *others[:-1]):
            if all(abs(self._place[x] - self._place[other]) >= apart for other in named):
                named.append(x)
        return {x: place for x, place in self._place.items() if x in named}

    def _set_heights(self, axes: Axes) -> None:
        if self.logarithmic:
            positive = [self._of(value) for value in [*self._values, *self.levels.values()] if value > 0] or [1.0]
            # Limits first: scaling to one value repeated is a warning on a logarithmic axis.
            bottom, top = axes.set_ylim(min(positive) / 1.6, max(positive) * 1.6)
            axes.set_yscale("log")
            # Of a few decades, powers of ten alone may be one tick or none.
            if top < 10 * bottom:
                axes.yaxis.set_major_locator(MaxNLocator(5))
            elif top < 100 * bottom:
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            top = max([self._of(value) for value in [*self._values, *self._dotted.values()]], default=1.0)
            axes.set_ylim(0, top * 1.16 or 1)
            axes.yaxis.set_major_locator(MaxNLocator(5))
        if self.logarithmic and axes.get_ylim()[0] < _LEAST_IN_ONE_UNIT:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: self._in_its_own_unit(value)))
            return
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: digits(value)))
        axes.set_ylabel(self._of.unit)

    def _in_its_own_unit(self, height: float) -> str:
        """A height of the axis, as ``10 kB/s`` where the axis is in GB/s."""
        value = height * self._of.divisor
        own = scale(self.unit, [value * (1 + 1e-9)])  # 1e-5 GB/s is a little less than 10 kB/s
        return f"{digits(own(value))} {own.unit}"

    def _set_places(self, axes: Axes) -> None:
        axes.set_xticks([*self._named.values()], [legible(self.x_ticks[x]) for x in self._named])
        # Of many places a third of one is less than a marker, and names at the ends would touch it.
        beside = max(0.35, 0.025 * len(self.x_ticks))
        axes.set_xlim(-0.35, len(self.x_ticks) - 1 + beside)
        axes.set_xlabel(self.x_label)

    def _say_names(self, figure: Figure, axes: Axes) -> None:
        """Figures at the points where there is room, how cases without one ended, and what each curve is called."""
        bottom, top = axes.get_ylim()

        def height(value: float | None) -> float:
            """Where a value stands between the foot and the top of the axes, from 0 to 1."""
            shown = max(self._of(value or 0.0), bottom)
            if self.logarithmic:
                return math.log(shown / bottom) / math.log(top / bottom)
            return (shown - bottom) / (top - bottom)

        if len(self._place) <= 6 and len(self.series) <= 2:
            _value_labels(axes, self._numbered, self._of, self._named)
        heights = {
            curve.name: [(self._place[mark.x], height(mark.value)) for mark in curve.measured] for curve in self.series
        }
        _missing(axes, self._numbered, self._place, [sorted(points) for points in heights.values() if points])
        ends = [
            (max(points)[1], number, curve.name) for number, curve in self._numbered if (points := heights[curve.name])
        ]
        if self._are_named_below:
            _names_below(figure, self._numbered)
        ends = [] if self._is_named_above or self._are_named_below else ends
        _end_labels(axes, [*ends, *((height(level), None, name) for name, level in self._dotted.items() if level)])

    @property
    def _columns(self) -> tuple[Column, ...]:
        numbers = (Column(name, self.unit) for name in ("value", "low", "high", _expected(self.series) or "expected"))
        return Column("curve"), Column(self.x_label), *numbers, Column("outcome")

    def _entries(self) -> Iterator[Entry]:
        for curve in self.series:
            for mark in curve.marks:
                gap = "" if mark.value is not None else mark.status.replace("_", " ")
                x, y = self._place[mark.x], None if mark.value is None else self._of(mark.value)
                yield Entry(
                    (curve.name, self.x_ticks[mark.x], mark.value, mark.low, mark.high, mark.expected, gap),
                    mark.case,
                    None if y is None else (x, y, x, y),
                )


def _names_below(figure: Figure, numbered: Sequence[tuple[int, Series]]) -> None:
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
        for number, _ in numbered
    ]
    names = [legible(curve.name) for _, curve in numbered]
    figure.legend(keys, names, loc="outside lower left", frameon=False, fontsize=LETTERS, labelcolor=INK)
    figure.set_figheight(figure.get_figheight() + 0.17 * len(numbered))


def _line(axes: Axes, curve: Series, number: int, of: Scale, place: Mapping[float, float]) -> None:
    colour, shape = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    marks = sorted(curve.marks, key=lambda mark: mark.x)
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
    elsewhere = [(place[mark.x], of(mark.value)) for mark, _ in curve.moved if mark.value is not None]
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


def _expected(series: Sequence[Series]) -> str:
    """What expected values are called where there are some: of bounds alone ``expected at most``."""
    bases = {mark.basis.startswith("at most") for curve in series for mark in curve.marks if mark.expected is not None}
    return ("expected at most" if bases == {True} else "expected") if bases else ""


def _say_what_is_hollow(figure: Figure, series: Sequence[Series]) -> None:
    """What diamonds are, and a line for each size that ran on other hosts: between it and the others lies the
    difference of hosts, too."""
    expected = _expected(series)
    diamonds = [f"◇ {expected}"] if expected else []
    sentences = dict.fromkeys(
        f"hollow: {moved_sentence(mark.world_size, mark.hosts, before)}"
        for curve in series
        for mark, before in curve.moved
    )
    more = [f"and {len(sentences) - 3} more"] if len(sentences) > 3 else []
    if text := "\n".join([*diamonds, *list(sentences)[:3], *more]):
        figure.supxlabel(text, x=0.01, ha="left", fontsize=LETTERS, color=MUTED)


def _missing(
    axes: Axes,
    numbered: Sequence[tuple[int, Series]],
    place: Mapping[float, float],
    curves: Sequence[Sequence[tuple[float, float]]],
) -> None:
    """A cross for every case without a figure, as a gap must have a reason: at the foot, or all at the top where
    ``curves``, points from left to right, pass the foot there."""
    gaps = {place[mark.x] for _, curve in numbered for mark in curve.marks if mark.value is None}
    passing = [
        float(np.interp(gap, [at for at, _ in curve], [height for _, height in curve]))
        for gap in gaps
        for curve in curves
        if curve[0][0] <= gap <= curve[-1][0]
    ]
    at_top = bool(passing) and sum(passing) / len(passing) < 0.5
    crowd: dict[float, int] = {}
    for number, curve in numbered:
        for gap in curve.marks:
            if gap.value is not None:
                continue
            shift = crowd.get(gap.x, 0)
            crowd[gap.x] = shift + 1
            x, colour = place[gap.x] + 0.16 * shift, PALETTE[number % len(PALETTE)]
            across = axes.get_xaxis_transform()
            axes.plot(
                [x], [0.95 if at_top else 0.04], "x", color=colour, transform=across, markersize=6, markeredgewidth=1.8
            )
            axes.text(
                x, 0.90 if at_top else 0.09, gap.status.replace("_", " "), transform=across, rotation=90,
                color=WORDS[number % len(WORDS)], fontsize=LETTERS, ha="center", va="top" if at_top else "bottom",
            )  # fmt: skip


def _value_labels(axes: Axes, numbered: Sequence[tuple[int, Series]], of: Scale, place: Mapping[float, float]) -> None:
    """Figures at the points and clear of their intervals: the upper curve's above, the lower curve's below unless the
    axis is there."""
    bottom, top = axes.get_ylim()
    near = bottom + 0.1 * (top - bottom)
    for x, position in place.items():
        here = sorted(
            ((of(mark.value), _ends(mark, of), number) for number, curve in numbered for mark in curve.marks
             if mark.x == x and mark.value is not None),
            reverse=True,
        )  # fmt: skip
        for order, (value, (low, high), number) in enumerate(here):
            is_below = order > 0
            if is_below and (digits(value, 3) == digits(here[0][0], 3) or low < near):
                continue
            axes.annotate(
                digits(value, 3), (position, low if is_below else min(high, top)), (0, -8 if is_below else 7),
                textcoords="offset points", ha="center", va="top" if is_below else "bottom", fontsize=LETTERS,
                color=WORDS[number % len(WORDS)],
            )  # fmt: skip


def _ends(at: Mark, of: Scale) -> tuple[float, float]:
    """Of what is drawn at a point: its interval, or the point."""
    assert at.value is not None
    ends = [of(end) for end in (at.value, at.low, at.high) if end is not None]
    return min(ends), max(ends)


_APART = 0.07
"""Between two names at the ends of curves, as a share of the axes' height."""


def moved_apart(heights: Sequence[float]) -> list[float]:
    """Where names stand that would touch at these heights, given from the lowest up: no two too near each other, and
    none above the axes, where it would take their room.

    >>> [round(height, 2) for height in moved_apart([0.2, 0.95, 0.97, 1.0])]
    [0.2, 0.86, 0.93, 1.0]
    """
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + _APART) if moved else height)
    most = 1.0
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], most)
        most = moved[place] - _APART
    return moved


def _end_labels(axes: Axes, ends: Sequence[tuple[float, int | None, str]]) -> None:
    """Names at the right ends of the curves, moved apart where they would touch, and cut where they would take the
    curves' room."""
    ends = sorted(ends, key=lambda end: end[0])
    for at, (_, number, name) in zip(moved_apart([height for height, _, _ in ends]), ends, strict=True):
        axes.annotate(
            legible(name, LONGEST), (1.0, at), (4, 0), xycoords="axes fraction", textcoords="offset points",
            va="center", color=MUTED if number is None else WORDS[number % len(WORDS)], fontsize=LETTERS,
            fontweight="normal" if number is None else "bold", annotation_clip=False,
        )  # fmt: skip
