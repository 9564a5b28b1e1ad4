from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.links import NEIGHBOURS, links, worded
from clusterbench.cases.sweeps import sweep_name
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.rows import Row
from clusterbench.units import format_bytes, format_value

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST_IN_A_PANEL, MOST_LEVELS, MOST_OTHERS = 6, 4, 5
MOST_PANELS, MOST_OPERATIONS = 3, 12
MOST_SHORTER = 16
"""Times: a curve that ends at a smaller part of the longest one's size says nothing of what large messages reach."""

MOST_OF_LATENCY = 4096
"""Bytes of a message whose time is the latency of a call, and not that of its bytes."""


@dataclass(frozen=True)
class Sweep:
    """The curves, and by the name of each what the link below it can carry, by where that is from.

    ``operations`` holds, where one operation ran on several numbers of ranks, the operation of each curve, those over
    all ranks first.
    """

    bandwidth: list[Series]
    latency: list[Series]
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of all curves, those with a bandwidth first."""
        return list(dict.fromkeys(curve.name for curve in (*self.bandwidth, *self.latency)))

    @cached_property
    def panels(self) -> list[tuple[str, Sequence[str]]]:
        """The curves that stand together, with the operation where it is theirs alone: its ranks beside each other."""
        if len(self.names) <= MOST_IN_A_PANEL or not self.operations:
            return [("", part) for part in _parts(self.names)][:MOST_PANELS]
        of_each: dict[str, list[str]] = defaultdict(list)
        for name, operation in self.operations.items():
            if name in self.names:
                of_each[operation].append(name)
        in_turn = zip_longest(*([(operation, part) for part in _parts(own)] for operation, own in of_each.items()))
        return [panel for of_all in in_turn for panel in of_all if panel is not None][:MOST_OPERATIONS]


class BusbwBySize(Chart[Sweep]):
    """Bus bandwidth and time of a call against message size.

    How to read it
    --------------
    Bus bandwidth rescales bytes per second by what the busiest link has to carry, so its plateau at large sizes may
    be held against one direction of a link. At small sizes the right panel counts: its floor is the latency of a
    call. Both axes are logarithmic. Hollow diamonds are expected values. Dotted levels are what one link carries in one
    direction: by the data sheet of the GPU, as the median of a link matrix, or as send_recv reached at its best between
    neighbours. A collective may pass a measured level where it uses several links at once, and stays below a data
    sheet's.
    """

    title: ClassVar[str] = "Bus bandwidth and latency by message size"
    section: ClassVar[Section] = "links"
    after: ClassVar[str] = "embedding_lookup"

    def select(self, reading: Reading) -> Sweep | None:
        rows, cluster = reading.rows, reading.plan.cluster
        wanted = reading.rows_of("busbw", "latency", "", "bandwidth")
        shown = [row for row in wanted if _is_part_of_a_sweep(row) and (row.metric != "bandwidth" or _is_pair(row))]
        name = sweep_name(shown)
        curves_of: dict[str, dict[str, list[Mark]]] = {"busbw": defaultdict(list), "latency": defaultdict(list)}
        gaps: dict[str, list[Mark]] = defaultdict(list)
        for row in shown:
            size_bytes = float(row.point["size_bytes"])
            metric = "busbw" if row.metric == "bandwidth" else row.metric
            if metric in curves_of and row.value is not None:
                curves_of[metric][name(row)].append(mark(size_bytes, row))
            elif not row.metric:
                gaps[name(row)].append(mark(size_bytes, row))
        if not any(len(marks) > 1 for marks in curves_of["busbw"].values()):
            return None
        known = links(rows, cluster)
        limits = {name(row): {worded(what, row): rate for what, rate in known.of(row).items()} for row in shown}
        bandwidth, latency = ([_series(name, marks, gaps) for name, marks in of.items()] for of in curves_of.values())
        of_all_first = sorted(shown, key=lambda row: bool(row.point.get("axis")))
        operations = {name(row): str(_operation(row)) for row in of_all_first}
        return Sweep(bandwidth, latency, limits, operations if _on_several_ranks(shown) else {})

    def draw(self, data: Sweep) -> list[Panel]:
        figures = []
        said: set[str] = set()
        for operation, names in data.panels:
            # a curve looks alike in both, and unlike those of the panels above, unless these are of another operation
            for title, series, unit in (
                ("Bus bandwidth", data.bandwidth, "B/s"),
                ("Time of one call", data.latency, "s"),
            ):
                if curves := [curve for curve in series if curve.name in names]:
                    ticks = {mark.x: format_bytes(mark.x) for curve in curves for mark in curve.marks}
                    levels = _levels(curves, data.limits) if unit == "B/s" else {}
                    numbers = [(names if operation else data.names).index(curve.name) for curve in curves]
                    name = ", ".join(filter(None, [title, operation, "more curves" if operation in said else ""]))
                    figures.append(
                        Lines(
                            name, curves, unit, ticks, "message size", logarithmic=True, levels=levels, numbers=numbers
                        ).panel()
                    )
            said.add(operation)
        return figures

    def answer(self, data: Sweep) -> str:
        known = [of for of in data.bandwidth if of.measured]
        tops = sorted(((max(of.measured, key=_rate), of.name) for of in known), key=lambda top: -_rate(top[0]))
        short = [of.name for of in known if MOST_SHORTER * _longest(of) < max(map(_longest, known))]
        (top, best), *others = tops
        reached = f"{best} reaches {format_value(_rate(top), 'B/s')} bus bandwidth at {format_bytes(top.x)}"
        shares = (
            f"{_share(_rate(top), rate)} {format_value(rate, 'B/s')} ({what})"
            for what, rate in data.limits.get(best, {}).items()
            if not what.startswith(NEIGHBOURS)  # a part of a cluster's links, so no share of it
        )
        latency = _latency(curve for curve in data.latency if curve.name in {name for _, name in tops})
        return " ".join(filter(None, [f"{', '.join([reached, *shares])}.", _others(others, short), latency]))

    def left_out(self, data: Sweep) -> str:
        drawn, there = sum(len(names) for _, names in data.panels), len(data.names)
        if data.operations and drawn < there:
            return f"Drawn are {drawn} of {there} curves; all are in the table of cases."
        return curves_note(there, drawn, "curves")


def _rate(top: Mark) -> float:
    return top.value or 0.0


def _longest(curve: Series) -> float:
    return max(mark.x for mark in curve.measured)


def _others(others: Sequence[tuple[Mark, str]], short: Sequence[str]) -> str:
    """The best of each other curve; of many the lowest, beside those too short to tell what large messages reach."""
    if not others:
        return ""
    if len(others) <= MOST_OTHERS:
        return f"Others, each at its best: {'; '.join(_reached(*top) for top in others)}."
    whole = [top for top in others if top[1] not in short]
    lowest = f"The lowest of {len(whole) + 1} curves: {_reached(*whole[-1])}." if whole else ""
    more = f" and {len(short) - MOST_OTHERS} more" if len(short) > MOST_OTHERS else ""
    # names have commas of their own
    without = f"Without a figure of large messages: {'; '.join(short[:MOST_OTHERS])}{more}." if short else ""
    return " ".join(filter(None, [lowest, without]))


def _reached(top: Mark, name: str) -> str:
    return f"{name} {format_value(_rate(top), 'B/s')} at {format_bytes(top.x)}"


def _latency(curves: Iterable[Series]) -> str:
    """What a call takes with next to no bytes, at its best of such sizes; of several curves the least and the most."""
    small = {curve.name: [mark.value for mark in curve.measured if mark.x <= MOST_OF_LATENCY] for curve in curves}
    times = sorted((min(filter(None, own)), name) for name, own in small.items() if any(own))
    if not times:
        return ""
    said = [f"{format_value(time_s, 's')} ({name})" for time_s, name in (times[0], times[-1])]
    took = f"from {' to '.join(said)}" if len(times) > 1 else format_value(times[0][0], "s")
    return f"A small message takes {took}."


def _share(value: float, rate: float) -> str:
    """``58 % of``; of more than the rate, which then is no ceiling: ``5.3 times``."""
    return f"{100 * value / rate:.0f} % of" if value < 1.005 * rate else f"{value / rate:.3g} times"


def _levels(panel: Sequence[Series], limits: dict[str, dict[str, float]]) -> dict[str, float]:
    """Of all curves of a panel; of many node counts the first few."""
    levels = {name: rate for curve in panel for name, rate in limits.get(curve.name, {}).items()}
    return dict([*levels.items()][:MOST_LEVELS])


def _is_part_of_a_sweep(row: Row) -> bool:
    return row.status != "refused" and isinstance(row.point.get("size_bytes"), (int, float))


def _is_pair(row: Row) -> bool:
    """Whether it is MPI's rate between two ranks, whose link carries just these bytes."""
    return row.benchmark == "mpi"


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + MOST_IN_A_PANEL] for start in range(0, len(names), MOST_IN_A_PANEL)]


def _operation(row: Row) -> object:
    return row.point.get("op") if row.benchmark == "imported" else row.benchmark


def _on_several_ranks(rows: Sequence[Row]) -> bool:
    """Whether the same operation ran on more ranks and on fewer."""
    ranks = {(_operation(row), row.world_size) for row in rows}
    return len(ranks) > len({operation for operation, _ in ranks})


def _series(name: str, marks: list[Mark], gaps: dict[str, list[Mark]]) -> Series:
    # Of several points at one size the first stands; all are in the table.
    first = {mark.x: mark for mark in reversed([*marks, *gaps.get(name, [])])}
    return Series(name, tuple(sorted(first.values(), key=lambda mark: mark.x)))
