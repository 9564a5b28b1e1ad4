"""Stacked bars, one for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import INK, MUTED, PALETTE, PAPER, canvas
from clusterbench.units import digits, scale
from clusterbench.words import legible


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
