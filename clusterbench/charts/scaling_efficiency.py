from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.scaling import Sweep, sweeps
from clusterbench.charts import Chart, Section, curves_note, said_of
from clusterbench.drawing.lines import Lines, Series, mark
from clusterbench.rows import Row

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_SWEEPS = 6, 3


@dataclass(frozen=True)
class Scaled:
    """One sweep: curves of its efficiency and of the throughput of all ranks together, by kind of layout.

    Of thousands of sweeps a few are drawn: each makes its curves when it is asked for them. ``rates`` are the rows of
    tokens per second and rank, by case.
    """

    sweep: Sweep
    rates: Mapping[str, Row]

    @cached_property
    def efficiency(self) -> tuple[Series, ...]:
        return tuple(self._curve(kind, runs) for kind, runs in self.sweep.kinds.items())

    @cached_property
    def throughput(self) -> tuple[Series, ...]:
        return tuple(
            self._curve(kind, [_of_all_ranks(self.rates[row.case]) for row in runs])
            for kind, runs in self.sweep.kinds.items()
            if all(row.case in self.rates for row in runs)
        )

    def _curve(self, kind: str, runs: Iterable[Row]) -> Series:
        return Series(kind, tuple(mark(self.sweep.size(row), row._replace(expected=None)) for row in runs))

    @property
    def of_smallest(self) -> float | None:
        """Tokens per second of the smallest run; None where curves are held against several."""
        smallest, *others = self.sweep.smallest
        rate = self.rates.get(smallest.case)
        return None if rate is None or others else _of_all_ranks(rate).value


def _of_all_ranks(rate: Row) -> Row:
    """The throughput of a run, from that of each of its ranks."""

    def together(value: float | None) -> float | None:
        return None if value is None else value * rate.world_size

    return rate._replace(value=together(rate.value), low=together(rate.low), high=together(rate.high))


class ScalingEfficiency(Chart[list[Scaled]]):
    """Throughput per rank against that of the smallest run.

    How to read it
    --------------
    Left: 100 % means that a rank of the large run does as much work per second as a rank of the smallest one with
    the same options. Right: tokens per second of all ranks together; below the dotted level, the smallest run's,
    more ranks train slower than few. It is drawn where all curves are held against one run. Strong scaling keeps
    the work of a step, so each rank has less of it; weak scaling keeps the work of a rank. A curve is one kind of
    layout, whatever its degrees; where several layouts of a kind use as many ranks, the best one is drawn. A pale
    bar behind a point runs from the 5th to the 95th percentile of all iterations of all repeats. The axis of ranks
    or nodes is logarithmic.
    """

    title: ClassVar[str] = "Scaling efficiency against ranks or nodes"
    section: ClassVar[Section] = "scaling"

    def select(self, reading: Reading) -> list[Scaled] | None:
        rates = {row.case: row for row in reading.rows_of("tokens_per_s_per_rank") if row.value is not None}
        found = sweeps(reading.rows_of("scaling_efficiency"), rates.values())
        return [Scaled(sweep, rates) for sweep in found] or None

    def draw(self, data: list[Scaled]) -> list[Panel]:
        panels = []
        for scaled in data[:MOST_SWEEPS]:
            sweep = scaled.sweep
            name = f"\n{sweep.name}" if sweep.name else ""
            ticks = {mark.x: f"{mark.x:.0f}" for curve in scaled.efficiency[:MOST] for mark in curve.marks}
            panels.append(
                Lines(
                    f"{sweep.title}: efficiency{name}",
                    scaled.efficiency[:MOST],
                    "fraction",
                    ticks,
                    x_label=sweep.sizes,
                    ideal=1.0,
                    ideal_name="ideal",
                ).panel()
            )
            if scaled.throughput:
                panels.append(
                    Lines(
                        f"{sweep.title}: tokens per second of all ranks{name}",
                        scaled.throughput[:MOST],
                        "tokens/s",
                        ticks,
                        x_label=sweep.sizes,
                        ideal=scaled.of_smallest,
                        ideal_name="smallest run",
                    ).panel()
                )
        return panels

    def answer(self, data: list[Scaled]) -> str:
        scaled = data[0]
        ends = [(max(curve.measured, key=lambda mark: mark.x), curve.name) for curve in scaled.efficiency]
        best, name = max(ends, key=lambda end: (end[0].x, end[0].value or 0.0))
        kept, at = f"{100 * (best.value or 0.0):.0f} %", f"At {best.x:.0f} {scaled.sweep.sizes}"
        if len(scaled.sweep.smallest) > 1:  # what keeps most of a slow start is not therefore the fastest
            sentence = f"{at} {name} keeps most of the throughput per rank of what it is held against, {kept}."
        else:
            which = f"the best layout, {name}," if len(ends) > 1 else name
            sentence = f"{at} {which} keeps {kept} of the throughput per rank."
        return said_of(scaled.sweep.name, sentence)

    def left_out(self, data: list[Scaled]) -> str:
        counts = [len(scaled.sweep.kinds) for scaled in data]
        return curves_note(sum(counts), sum(min(count, MOST) for count in counts[:MOST_SWEEPS]), "curves")
