from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.cases.ranking import percent
from clusterbench.charts import Chart, Section, curves_note, said_of_each
from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import INK, LETTERS, MUTED, PALETTE, canvas
from clusterbench.formulas.statistics import median
from clusterbench.measured.nodes import NODE_STEP
from clusterbench.rows import Row
from clusterbench.units import scale
from clusterbench.words import legible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from clusterbench.units import Scale

MOST = 6
MOST_NAMED = 32
"""Of more nodes some have their names at the axis, the slowest always."""

_OF_NODE, _LEAST, _WIDEST = 0.26, 5.2, 9.0
"""In inches."""


@dataclass(frozen=True)
class Nodes:
    """The step of one case on each of its nodes: figures with a host each, the slowest first."""

    name: str
    rows: tuple[Row, ...]

    @property
    def times_s(self) -> list[float]:
        return [row.value or 0.0 for row in self.rows]

    @property
    def usual_s(self) -> float:
        """What the slowest is held against: the median of nodes, of two the other one."""
        return self.times_s[1] if len(self.rows) == 2 else median(self.times_s)

    @property
    def usual(self) -> str:
        """What that is called."""
        return _host(self.rows[1]) if len(self.rows) == 2 else "the median of nodes"

    @property
    def stands_out(self) -> bool:
        """Whether nearly every step of the slowest node took longer than the usual one."""
        low_s = self.rows[0].low
        return low_s is not None and low_s > self.usual_s


class NodeSteps(Chart[list[Nodes]]):
    """Time of a training step on each of several nodes that ran the same step at once, each by itself.

    How to read it
    --------------
    A point is the median of a node's steps, its line the 5th to the 95th percentile; the slowest node stands left. All
    do the same work and send nothing to each other, so equal nodes make a level row. The dashed line is the median of
    nodes, or of two the faster one. A square marks a slowest node of whose steps 95 % took longer than that. The axis
    of times does not begin at 0. Links between nodes are not in these figures; GPUs, processors, memory and links
    inside a node are.
    """

    title: ClassVar[str] = "One training step on each node, side by side"
    section: ClassVar[Section] = "host"

    def select(self, reading: Reading) -> list[Nodes] | None:
        cases: dict[str, list[Row]] = defaultdict(list)
        for row in reading.rows_of("step_time"):
            if row.benchmark == NODE_STEP and row.value is not None:
                cases[row.case].append(row)
        compared = [sorted(rows, key=lambda row: -(row.value or 0.0)) for rows in cases.values() if len(rows) > 1]
        name = names(rows[0] for rows in compared)
        return [Nodes(name(rows[0]), tuple(rows)) for rows in compared] or None

    def draw(self, data: list[Nodes]) -> list[Panel]:
        return [_panel(nodes) for nodes in data[:MOST]]

    def answer(self, data: list[Nodes]) -> str:
        apart = [nodes.name for nodes in data[:MOST]] if len(data) > 1 else [""]
        return said_of_each(apart, map(_sentence, data[:MOST]))

    def left_out(self, data: list[Nodes]) -> str:
        return curves_note(len(data), MOST, "steps that ran on each node")


def _host(row: Row) -> str:
    return legible(row.detail.get("part", ""), 32)


def _sentence(nodes: Nodes) -> str:
    slowest_s, usual_s = nodes.times_s[0], nodes.usual_s
    is_slowest = (
        f"Of {len(nodes.rows):,} nodes {_host(nodes.rows[0])} is the slowest: its step takes {_told(slowest_s)}"
    )
    longer = f"{percent(slowest_s / usual_s - 1)} longer than {nodes.usual} ({_told(usual_s)})"
    return f"{is_slowest}, {longer}{'' if nodes.stands_out else '; its own steps differ by as much'}."


def _told(time_s: float) -> str:
    of = scale("s", [time_s])
    return f"{of.text(time_s, 3)} {of.unit}"


def _panel(nodes: Nodes) -> Panel:
    count, hosts = len(nodes.rows), [_host(row) for row in nodes.rows]
    ends = [end for row in nodes.rows for end in (row.low, row.value, row.high) if end is not None]
    of = scale("s", ends)
    width = min(_WIDEST, max(_LEAST, 1.0 + _OF_NODE * count))
    figure, axes = canvas(f"{nodes.name}: time of a step, {of.unit}", width, 3.6)
    for place, row in enumerate(nodes.rows):
        _draw_node(axes, place, row, of, PALETTE[1] if place == 0 and nodes.stands_out else PALETTE[0])
    axes.axhline(of(nodes.usual_s), color=INK, linewidth=1.1, linestyle=(0, (4, 2)))
    axes.annotate(
        f"{nodes.usual.removeprefix('the ')} {_told(nodes.usual_s)}", (1, of(nodes.usual_s)), (0, 3),
        xycoords=axes.get_yaxis_transform(), textcoords="offset points", ha="right", fontsize=LETTERS, color=MUTED,
    )  # fmt: skip
    step = -(-count // MOST_NAMED)
    is_long = max(map(len, hosts)) * count > 40
    axes.set_xticks(range(0, count, step), hosts[::step], rotation=90 if is_long else 0)
    axes.set_xlim(-0.6, count - 0.4)
    columns = (
        Column("node"),
        *(Column(name, "s") for name in ("time of a step", "low", "high")),
        Column(f"longer than {nodes.usual} by", "fraction"),
    )
    entries = tuple(
        Entry(
            (host, row.value, row.low, row.high, time_s / nodes.usual_s - 1),
            row.case,
            (place - 0.4, of(row.low or time_s), place + 0.4, of(row.high or time_s)),
        )
        for place, (host, row, time_s) in enumerate(zip(hosts, nodes.rows, nodes.times_s, strict=True))
    )
    return Panel(figure, columns, entries)


def _draw_node(axes: Axes, place: int, row: Row, of: Scale, colour: str) -> None:
    if row.low is not None and row.high is not None:
        axes.vlines(place, of(row.low), of(row.high), color=colour, alpha=0.45, linewidth=2.2)
    axes.plot(
        [place], [of(row.value or 0.0)], marker="s" if colour == PALETTE[1] else "o", color=colour, markersize=5.5
    )
