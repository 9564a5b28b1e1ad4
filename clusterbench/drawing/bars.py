"""Stacked bars, one for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import HEADING, INK, LETTERS, LINE, MUTED, PALETTE, PAPER, canvas
from clusterbench.units import Scale, digits, scale
from clusterbench.words import legible

Values = Sequence[float | None]
"""One for each bar."""

_LABEL = 0.066
"""In inches: the width of a letter of a bar's name."""

_LONGEST = 44
"""Letters of a line of a bar's name: two such figures have room beside each other on a page."""

Colour = tuple[str, float]
"""One that the page knows, and how much of it."""


@dataclass(frozen=True)
class Bars:
    """Horizontal stacked bars, the first label on top.

    Attributes
    ----------
    parts, expected
        By name and bar. What was expected of a part is a tick, where the part should have ended.
    markers
        A hollow diamond for each bar: a total that is not the sum of the parts. Where the figure behind a bar is that
        of the bar and the diamond's is another, it stands beside it.
    missing
        How a bar without a figure ended.
    cases
        The id of each bar's case.
    colours
        Of parts that have one of their own in every chart, by name; the others take those of the palette in turn.
    limit
        The name of the most that there is, and how much it is: a line across the bars, or, where it is far beyond them,
        words at the axis.
    most
        How many are drawn, the first ones; the table behind them has all.
    """

    title: str
    labels: Sequence[str]
    parts: Mapping[str, Values]
    unit: str
    expected: Mapping[str, Values] | None = None
    markers: Values = ()
    marker_name: str = "formula"
    missing: Mapping[int, str] | None = None
    cases: Sequence[str] = ()
    limit: tuple[str, float] | None = None
    colours: Mapping[str, Colour] | None = None
    most: int | None = None

    def panel(self) -> Panel:
        drawn = self._first(len(self.labels) if self.most is None else self.most)
        columns = self._columns()
        return Panel(drawn._figure(), (Column("bar"), *columns, Column("outcome")), self._entries(columns, drawn))

    def _first(self, number: int) -> Bars:
        """The same with fewer bars."""

        def cut(parts: Mapping[str, Values]) -> Mapping[str, Values]:
            return {name: values[:number] for name, values in parts.items()}

        return replace(
            self,
            labels=self.labels[:number],
            parts=cut(self.parts),
            expected=None if self.expected is None else cut(self.expected),
            markers=self.markers[:number],
        )

    def _figure(self) -> Figure:
        longest = max((len(line) for name in self._names for line in name), default=0)
        # Long names would leave the bars no room.
        width = 5.2 + 0.055 * max(0, longest - 24)
        letters = max(24, int((width - _LABEL * longest) / HEADING))  # the title begins where the bars do
        lines = [part for line in self.title.splitlines() for part in wrap(line, letters, break_on_hyphens=False)]
        of_bar = max(0.29, 0.06 + 0.14 * max(map(len, self._names), default=1))
        height = max(1.9, 1.25 + of_bar * len(self.labels)) + LINE * (len(lines) - len(self.title.splitlines()))
        figure, axes = canvas("\n".join(lines), width, height)
        ticks = self._draw_parts(axes)
        self._say_totals(axes)
        self._mark(axes, ticks)
        self._set_axes(axes)
        if len(self.parts) > 1 or ticks or any(marker is not None for marker in self.markers):
            self._explain(figure, axes)
        return figure

    @cached_property
    def _labels(self) -> list[str]:
        return [legible(label, 3 * _LONGEST) for label in self.labels]

    @cached_property
    def _names(self) -> list[list[str]]:
        """The lines of each label."""
        return [_lines(label) for label in self._labels]

    @cached_property
    def _totals(self) -> list[float]:
        return [sum(values[bar] or 0.0 for values in self.parts.values()) for bar in range(len(self.labels))]

    @cached_property
    def _of(self) -> Scale:
        return scale(self.unit, [*self._totals, *(marker for marker in self.markers if marker is not None)])

    def _marker(self, bar: int) -> float | None:
        return self.markers[bar] if self.markers else None

    def _end(self, bar: int) -> float:
        """Where a bar and its marker end."""
        return max(self._of(self._totals[bar]), self._of(self._marker(bar) or 0.0))

    def _outcome(self, bar: int) -> str:
        return (self.missing or {}).get(bar, "").replace("_", " ")

    def _draw_parts(self, axes: Axes) -> list[tuple[float, int]]:
        """The places where parts were expected to end."""
        left = [0.0] * len(self.labels)
        ticks: list[tuple[float, int]] = []
        for number, (name, values) in enumerate(self.parts.items()):
            widths = [self._of(value or 0.0) for value in values]
            colour, alpha = (self.colours or {}).get(name, (PALETTE[number % len(PALETTE)], None))
            axes.barh(
                range(len(left)), widths, 0.66, left, color=colour, alpha=alpha, edgecolor=PAPER, linewidth=0.7,
                label=name,
            )  # fmt: skip
            planned = (self.expected or {}).get(name, ())
            ticks += [(left[bar] + self._of(value), bar) for bar, value in enumerate(planned) if value is not None]
            left = [start + width for start, width in zip(left, widths, strict=True)]
        return ticks

    def _say_totals(self, axes: Axes) -> None:
        """A figure behind each bar, or how its case ended."""
        for bar, total in enumerate(self._totals):
            if self.missing and bar in self.missing:
                axes.annotate(
                    f"× {self._outcome(bar)}", (0, bar), (4, 0), textcoords="offset points", va="center",
                    color=MUTED, fontsize=LETTERS,
                )  # fmt: skip
            elif total:
                axes.annotate(
                    self._said(bar, total), (self._end(bar), bar), (7, 0), textcoords="offset points", va="center",
                    fontsize=LETTERS, color=INK,
                )  # fmt: skip

    def _said(self, bar: int, total: float) -> str:
        said, marker = self._of.text(total, 3), self._marker(bar)
        if marker is None:
            return said
        of_marker = self._of.text(marker, 3)
        if self.expected is not None:
            return of_marker
        return said if said == of_marker else f"{said}, ◇ {of_marker}"

    def _mark(self, axes: Axes, ticks: Sequence[tuple[float, int]]) -> None:
        if ticks:
            axes.plot(
                *zip(*ticks, strict=True), linestyle="", marker="|", markersize=15, markeredgecolor=INK,
                markeredgewidth=1.3, label="expected", zorder=3,
            )  # fmt: skip
        diamonds = [(self._of(marker), bar) for bar, marker in enumerate(self.markers) if marker is not None]
        if diamonds:
            axes.plot(
                *zip(*diamonds, strict=True), linestyle="", marker="D", markersize=5.5, markerfacecolor=PAPER,
                markeredgecolor=INK, markeredgewidth=1, label=self.marker_name, zorder=4,
            )  # fmt: skip

    def _set_axes(self, axes: Axes) -> None:
        num_bars = len(self.labels)
        axes.set_yticks(range(num_bars), ["\n".join(lines) for lines in self._names])
        axes.set_ylim(num_bars - 0.4, -0.6)
        axes.set_xlim(0, max((self._end(bar) for bar in range(num_bars)), default=1.0) * 1.15 or 1)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: digits(value)))
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.set_xlabel(self._of.unit)
        if self.limit:
            _draw_limit(axes, self.limit[0], self._of(self.limit[1]), self._of.unit)

    def _explain(self, figure: Figure, axes: Axes) -> None:
        """A legend, the parts first."""
        handles, names = axes.get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda number: names[number] not in self.parts)
        figure.legend(
            [handles[number] for number in order], [names[number] for number in order], loc="outside lower left",
            ncols=4, frameon=False, fontsize=LETTERS,
            handlelength=1.0, handleheight=0.8, markerscale=0.75, columnspacing=1.2, labelcolor=INK,
        )  # fmt: skip

    def _columns(self) -> dict[Column, Values]:
        columns: dict[Column, Values] = {}
        for name, values in self.parts.items():
            columns[Column(name, self.unit)] = values
            if self.expected and name in self.expected:
                columns[Column(f"{name}, expected", self.unit)] = self.expected[name]
        if len(self.parts) > 1:
            columns[Column("sum", self.unit)] = [total or None for total in self._totals]
        if self.markers:
            columns[Column(self.marker_name, self.unit)] = self.markers
        return columns

    def _entries(self, columns: Mapping[Column, Values], drawn: Bars) -> tuple[Entry, ...]:
        return tuple(
            Entry(
                (label, *(values[bar] for values in columns.values()), self._outcome(bar)),
                self.cases[bar] if self.cases else "",
                (0.0, bar - 0.4, drawn._end(bar), bar + 0.4) if bar < len(drawn.labels) else None,
            )
            for bar, label in enumerate(self._labels)
        )


def _lines(label: str) -> list[str]:
    """A label with its words in order, what stands between two commas in one line."""
    glue = "\u00a0"
    pieces = (piece.replace(" ", glue) if len(piece) < _LONGEST else piece for piece in label.split(", "))
    lines = wrap(", ".join(pieces), _LONGEST, break_on_hyphens=False)
    return [line.replace(glue, " ") for line in lines] or [""]


def _draw_limit(axes: Axes, name: str, at: float, unit: str) -> None:
    right = axes.get_xlim()[1]
    if at > 4 * right:
        axes.set_xlabel(f"{unit} ({legible(name)} is {digits(at, 3)} {unit})")
        return
    axes.axvline(at, color=INK, linewidth=1.1, linestyle=(0, (1, 1.5)))
    axes.set_xlim(0, max(right, 1.04 * at))
    axes.annotate(
        f"{legible(name)} {digits(at, 3)}", (at, 1), (0, 2), xycoords=axes.get_xaxis_transform(),
        textcoords="offset points", ha="right", fontsize=LETTERS, color=MUTED,
    )  # fmt: skip
