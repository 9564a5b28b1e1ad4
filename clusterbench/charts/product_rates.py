from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.steadiness import cores_of
from clusterbench.charts import Chart, Section, bars_note
from clusterbench.drawing.bars import Bars
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.measured.step import BURST
from clusterbench.rows import Row
from clusterbench.units import format_value
from clusterbench.words import plural

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST_SHAPES, MOST_DTYPES = 12, 4
FASTER = 1.01
"""How many times as fast one rank alone has to be, to be worth a word."""
TIMES = 1.5
"""From which on it is said how many times, and no percentage."""


@dataclass(frozen=True)
class Products:
    """Of one dtype the rows of all shapes, by the number of ranks that compute at once; of each case, on GPUs, the rate
    of its first products as well. ``num_cores`` are those of a host of CPU ranks, where they are known.
    """

    dtype: str
    by_ranks: Mapping[int, Sequence[Row]]
    burst: Mapping[str, float] = field(default_factory=dict)
    num_cores: int | None = None

    @cached_property
    def best(self) -> Mapping[int, Row]:
        """The fastest shape at each number of ranks; none where no shape has a figure."""
        measured = {ranks: [row for row in rows if row.value] for ranks, rows in self.by_ranks.items()}
        return {ranks: max(rows, key=_rate) for ranks, rows in sorted(measured.items()) if rows}

    @property
    def of_all(self) -> Row:
        """The fastest while most ranks compute."""
        return self.best[max(self.best)]

    @property
    def shapes(self) -> Sequence[Row]:
        """All of them while most ranks compute, the fastest first."""
        return sorted(self.by_ranks[max(self.best)], key=lambda row: -_rate(row))


class ProductRates(Chart[list[Products]]):
    """FLOP/s of a rank in matrix products, by how many ranks compute at once and by shape.

    How to read it
    --------------
    First the fastest shape of each dtype against the number of ranks that compute at once: GPUs of a host share its
    power and its cooling, CPU ranks its cores, so a curve may fall. Below, the shapes while all compute, the fastest
    first; how well a shape fills the tiles and waves of a library decides, and what a model multiplies may be far from
    the best. The line is the data sheet's dense peak. Rates are those of the slowest rank, on GPUs sustained, of two
    seconds and more after clocks have come down.
    """

    title: ClassVar[str] = "Matrix products: rate of a rank by dtype and shape"
    section: ClassVar[Section] = "host"

    def select(self, reading: Reading) -> list[Products] | None:
        rows: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
        shown = [row for row in reading.rows_of("flops_per_s_per_rank", "") if _is_product(row)]
        several = len({row.run for row in shown}) > 1
        for row in shown:
            rows[f"{row.point['dtype']}, {row.run}" if several else str(row.point["dtype"])][row.world_size].append(row)
        burst = {row.case: row.value for row in reading.rows_of(BURST) if row.value}
        num_cores = cores_of(reading.environment) if reading.plan.cluster.device == "cpu" else None
        kinds = [Products(dtype, by_ranks, burst, num_cores) for dtype, by_ranks in rows.items()]
        found = sorted((kind for kind in kinds if kind.best), key=lambda kind: -_rate(kind.of_all))
        # one product beside a training step is the peak that its MFU is held against, and nothing to choose from
        is_alone = len(found) == 1 and len(found[0].shapes) == 1
        return None if not found or (is_alone and reading.trained) else found

    def draw(self, data: list[Products]) -> list[Panel]:
        panels = []
        if any(len(kind.best) > 1 for kind in data):
            curves = [Series(kind.dtype, _marks(kind)) for kind in data]
            ticks = {mark.x: f"{mark.x:.0f}" for curve in curves for mark in curve.marks}
            lines = Lines("The fastest shape", curves, "FLOP/s", ticks, "ranks at once", logarithmic=True)
            panels.append(lines.panel())
        for kind in data[:MOST_DTYPES]:
            if len(kind.shapes) > 1 or not panels:
                panels.append(_by_shape(kind))
        return panels

    def answer(self, data: list[Products]) -> str:
        ranks = max(max(kind.best) for kind in data)
        who = f"on each of {ranks:,} ranks at once{_sharing(data, ranks)}" if ranks > 1 else "on one rank"
        said = [_sentence(kind) for kind in data if ranks in kind.best]
        return " ".join([f"Matrix products reach, {who}: {'; '.join(said)}.", *_alone(data, ranks), *_burst(data)])

    def left_out(self, data: list[Products]) -> str:
        return bars_note([len(kind.shapes) for kind in data[:MOST_DTYPES]], MOST_SHAPES, "fastest", "a dtype")


def _sharing(data: Sequence[Products], ranks: int) -> str:
    """What CPU ranks take turns on, where a host has fewer cores than ranks."""
    kind = next(kind for kind in data if ranks in kind.best)
    takes_turns = kind.num_cores and ranks > kind.num_cores * kind.best[ranks].num_nodes
    return f", which share {plural(kind.num_cores, 'core')}" if kind.num_cores and takes_turns else ""


def _is_product(row: Row) -> bool:
    return row.benchmark == "matmul" and row.status != "refused"


def _rate(row: Row) -> float:
    return row.value or 0.0


def _marks(kind: Products) -> tuple[Mark, ...]:
    return tuple(mark(ranks, row) for ranks, row in kind.best.items())


def _shape(row: Row) -> str:
    """Rows of the first, columns of the second, and what is summed over."""
    point = row.point
    return " x ".join(str(point.get(name, point.get("size"))) for name in "mnk")


def _by_shape(kind: Products) -> Panel:
    rows, ranks = kind.shapes, max(kind.best)
    peak = next((row.expected for row in rows if row.expected), None)
    return Bars(
        f"{kind.dtype}, {plural(ranks, 'rank')}{' at once' if ranks > 1 else ''}",
        [_shape(row) for row in rows],
        {"FLOP/s of a rank": [row.value for row in rows]},
        "FLOP/s",
        missing={place: row.status for place, row in enumerate(rows) if row.value is None},
        cases=[row.case for row in rows],
        limit=None if peak is None else ("data sheet", peak),
        most=MOST_SHAPES,
    ).panel()


def _sentence(kind: Products) -> str:
    row = kind.of_all
    beside = [f"{100 * _rate(row) / row.expected:.0f} % of the data sheet's"] if row.expected else []
    beside += [_shape(row)] if len(kind.shapes) > 1 else []
    said = f"{kind.dtype} {format_value(_rate(row), 'FLOP/s')}"
    return f"{said} ({', '.join(beside)})" if beside else said


def _alone(data: Sequence[Products], ranks: int) -> list[str]:
    """By how much one rank alone is faster, where it is, in the dtype in which that is most."""
    gains = [
        (_rate(kind.best[1]) / _rate(kind.best[ranks]), kind.dtype)
        for kind in data
        if ranks > 1 and 1 in kind.best and ranks in kind.best
    ]
    if not gains or max(gains)[0] < FASTER:
        return []
    times, dtype = max(gains)
    words = f"up to {100 * (times - 1):.0f} % faster" if times < TIMES else f"up to {times:.1f} times as fast"
    return [f"One rank alone is {words} ({dtype})."]


def _burst(data: Sequence[Products]) -> list[str]:
    """How far the first products were ahead of what is sustained, in the dtype in which that is most."""
    gains = [
        (kind.burst[kind.of_all.case] / _rate(kind.of_all), kind.dtype)
        for kind in data
        if kind.of_all.case in kind.burst
    ]
    if not gains:
        return []
    times, dtype = max(gains)
    if times < FASTER:
        return ["The first products, before clocks come down, are no faster."]
    return [f"The first products, before clocks come down, are up to {100 * (times - 1):.0f} % faster ({dtype})."]
