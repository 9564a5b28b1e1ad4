from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.heatmaps import Cell, Heatmap
from clusterbench.cases.parts import parts_of
from clusterbench.cases.prices import PartOff, PricedCase, parts_off
from clusterbench.cases.ranking import best, named, outcome, percent, ranked, throughput
from clusterbench.cases.trained import Trained
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts.top_config import MOST, Shade, Words, heatmap_panel
from clusterbench.drawing.panel import Area, Column, Entry, Panel, Story
from clusterbench.formulas.attribution import Part
from clusterbench.pricing import spent
from clusterbench.rows import Row
from clusterbench.units import digits, format_value
from clusterbench.words import legible, plural

MOST_LINES = 40
"""Cases that a story lists."""

_TOO_LARGE, _UNPRICED = "not fitting by its price", "not priced"


@dataclass(frozen=True)
class Confronted:
    """A heatmap as it was measured, with the prices of its cases and the parts of their traced steps."""

    measured: Heatmap
    prices: Mapping[str, PricedCase]
    parts: Mapping[str, Mapping[Part, float]]

    @cached_property
    def priced(self) -> Heatmap:
        """The same cells with prices in place of what was measured; what does not fit by its price has no figure."""
        cells = {cell: [self._as_priced(case) for case in cases] for cell, cases in self.measured.cells.items()}
        return replace(self.measured, cells=cells, histories={})

    def _as_priced(self, case: Trained) -> Trained:
        of_case = self.prices.get(case.row.case)
        if case.row.status == "refused" or of_case is None or of_case.fits == "does not fit":
            status = case.row.status if case.row.status == "refused" else _UNPRICED if of_case is None else _TOO_LARGE
            return Trained(case.row._replace(status=status), case.layout)
        row = case.row._replace(metric="tokens_per_s", unit="tokens/s", value=of_case.tokens_per_s, detail={})
        figures: dict[tuple[str, ...], Row] = {("tokens_per_s",): row}
        if speed := throughput(case):
            for key, own in case.figures.items():
                if key[0] == "mfu" and own.value is not None and own.detail.get("source") != "imported":
                    figures[key] = own._replace(value=own.value * of_case.tokens_per_s / speed)
        return Trained(case.row, case.layout, figures)

    @cached_property
    def picks(self) -> dict[Cell, Trained]:
        """The case that the price chooses in each cell, with what was measured of it."""
        chosen = {cell: best(cases, throughput) for cell, cases in self.priced.cells.items()}
        return {cell: self.measured_of(cell, tops[0]) for cell, tops in chosen.items() if tops}

    def measured_of(self, cell: Cell, case: Trained) -> Trained:
        return next(other for other in self.measured.cells[cell] if other.row.case == case.row.case)

    @cached_property
    def slower_by(self) -> dict[Cell, float]:
        """By how much a step of the case that the price chooses is longer than that of the fastest, both measured."""
        return {
            cell: throughput(tops[0]) / throughput(pick) - 1
            for cell, pick in self.picks.items()
            if throughput(pick) and (tops := best(self.measured.cells[cell], throughput))
        }

    def off(self, case: Trained) -> list[PartOff]:
        """The parts of a step against those of its price, the one farthest off first; empty where none is known."""
        of_case = self.prices.get(case.row.case)
        return [] if of_case is None else parts_off(of_case.price, self.parts.get(case.row.case, {}))


class PredictedTopConfig(Chart[list[Confronted]]):
    """The configuration that prices choose for each shape and number of nodes, beside the measured ones.

    How to read it
    --------------
    The same cells as above, each with the configuration of which the price is lowest among those that were asked for
    and fit by their predicted memory, whatever became of them when they ran. The table behind it sets the price of that
    configuration beside its measured tokens per second, says by how much its step is longer than that of the fastest
    one measured, and what the price is made of; choose a cell for the same of every configuration there. Where a traced
    step was recorded, the part that is farthest from its price is named. Which rates prices rest on stands beside each
    step time.
    """

    title: ClassVar[str] = "The best configuration by price"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "top_config"
    is_aside: ClassVar[bool] = True

    def select(self, reading: Reading) -> list[Confronted] | None:
        prices = reading.prices.by_case
        if not prices:
            return None
        parts = parts_of(reading.rows_of("step_part"), "step_part")
        found = [Confronted(heatmap, prices, parts) for heatmap in reading.heatmaps]
        return [confronted for confronted in found if confronted.picks] or None

    def draw(self, data: list[Confronted]) -> list[Panel]:
        return [_panel(confronted) for confronted in data[:MOST]]

    def answer(self, data: list[Confronted]) -> str:
        slower = [by for confronted in data for by in confronted.slower_by.values()]
        if not slower:
            return "None of the configurations that prices choose was measured."
        right = sum(by == 0 for by in slower)
        return (
            f"The price chooses the fastest measured configuration in {right} of {plural(len(slower), 'cell')}; its "
            f"choice takes {percent(median(slower))} longer for a step (median), at most {percent(max(slower))}."
        )

    def left_out(self, data: list[Confronted]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _panel(confronted: Confronted) -> Panel:
    heatmap = confronted.priced

    def entry(cell: Cell, tops: Sequence[Trained], shade: Shade, words: Words | None, area: Area) -> Entry:
        return _entry(confronted, cell, words, area)

    what = "Fastest configuration by price, tokens/s"
    title = ", ".join(filter(None, [what, heatmap.shape, legible(heatmap.name, 100)]))
    return heatmap_panel(heatmap, throughput, title, lambda shade: _columns(heatmap), entry)


def _columns(heatmap: Heatmap) -> tuple[Column, ...]:
    return (
        Column("sequences" if heatmap.shape else "shape"),
        *([Column("nodes", "1")] if heatmap.num_nodes else []),
        Column(f"{heatmap.noun}s", "1"),
        Column("best by price"),
        Column("priced", "tokens/s"),
        Column("measured", "tokens/s"),
        Column("measured over priced", "1"),
        Column("fastest measured"),
        Column("longer than the fastest by", "fraction"),
        Column("price goes to (%)"),
        Column("farthest off"),
    )


def _entry(confronted: Confronted, cell: Cell, words: Words | None, area: Area) -> Entry:
    heatmap = confronted.measured
    row, world_size = cell
    nodes: tuple[float, ...] = (heatmap.num_nodes[world_size],) if heatmap.num_nodes else ()
    pick = confronted.picks.get(cell)
    if pick is None:
        cells = row, *nodes, float(world_size), "not tried" if words is None else "none", *[None] * 5, "", ""
        return Entry(cells, "", area)
    of_case = confronted.prices[pick.row.case]
    fastest = best(heatmap.cells[cell], throughput)
    off = confronted.off(pick)
    cells = (
        *(row, *nodes, float(world_size), named(pick), of_case.tokens_per_s, throughput(pick) or None),
        throughput(pick) / of_case.tokens_per_s or None,
        named(fastest[0]) if fastest else "none",
        confronted.slower_by.get(cell),
        spent(of_case.price.parts),
        _farthest(off) if off else _not_traced(pick),
    )
    return Entry(cells, pick.row.case, area, _story(confronted, cell))


def _farthest(off: Sequence[PartOff]) -> str:
    """``communication: 1.2 s, priced 0.5 s``."""
    worst = off[0]
    return f"{worst.name}: {format_value(worst.measured_s, 's')}, priced {format_value(worst.priced_s, 's')}"


def _not_traced(case: Trained) -> str:
    return "no traced step" if throughput(case) else outcome(case)


def _story(confronted: Confronted, cell: Cell) -> Story:
    heatmap = confronted.measured
    order = [attempts[0] for attempts in ranked(confronted.priced.cells[cell], throughput)]
    listed = [confronted.measured_of(cell, case) for case in order[:MOST_LINES]]
    lines = [_line(confronted, place, case) for place, case in enumerate(listed, 1)]
    columns = ("place by price", "configuration", "priced, tokens/s", "measured", "over priced", "farthest off")
    row, world_size = cell
    title = f"{heatmap.row_in_words(row)} on {heatmap.where(world_size)}, by price"
    return Story(title, tuple(_sentences(confronted, cell, order)), columns, tuple(lines), _linked(listed))


def _line(confronted: Confronted, place: int, case: Trained) -> tuple[str, ...]:
    of_case = confronted.prices[case.row.case]
    speed, off = throughput(case), confronted.off(case)
    return (
        *(str(place), named(case), digits(of_case.tokens_per_s)),
        digits(speed) if speed else outcome(case),
        f"{speed / of_case.tokens_per_s:.2f}" if speed else "",
        _farthest(off) if off else "",
    )


def _sentences(confronted: Confronted, cell: Cell, order: Sequence[Trained]) -> Iterator[str]:
    pick = confronted.picks[cell]
    price = confronted.prices[pick.row.case].price
    yield (
        f"The price chooses {named(pick)}: {format_value(price.step_s, 's')} for a step, 80 % within "
        f"{format_value(price.low_s, 's')} to {format_value(price.high_s, 's')}; of 100: {spent(price.parts)}."
    )
    by = confronted.slower_by.get(cell)
    if by is not None:
        how = "is the fastest measured, too" if by == 0 else f"takes {percent(by)} longer than the fastest measured"
        yield f"It {how}."
    elif not throughput(pick):
        yield f"It was not measured: {outcome(pick)}."
    without = sum(not throughput(case) for case in confronted.priced.cells[cell])
    if without:
        yield f"{without} more have no price, do not fit by it, or are refused."
    if len(order) > MOST_LINES:
        yield f"The first {MOST_LINES} of {len(order):,} are listed."


def _linked(listed: Sequence[Trained]) -> tuple[str, ...]:
    return tuple(case.row.case for case in listed)
