from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import GRID, INK, MUTED, PALETTE, PAPER, canvas
from clusterbench.charts._panel import Column, Entry, Panel
from clusterbench.charts._selection import FOLLOWS_LAYOUT, SHARING, Trained, curves_note, said, trained
from clusterbench.rows import Row
from clusterbench.scale import digits
from clusterbench.units import format_value

MOST = 4
FEWEST = 3  # layouts that make a choice
MOST_TIED = 2
_AS_EXPECTED = 0.02  # an imported MFU of three digits is that near to the recomputed one

CHOSEN = frozenset(("micro_batch_size", "attempt"))
"""Options that are chosen together with the layout: the batch of a step stays the same."""

Cell = tuple[str, int]
"""A shape and a number of ranks."""


@dataclass(frozen=True)
class Grid:
    """One workload: what was tried of each shape on each number of ranks."""

    name: str
    cells: Mapping[Cell, Sequence[Trained]]

    @property
    def shapes(self) -> list[str]:
        return list(dict.fromkeys(shape for shape, _ in self.cells))

    @property
    def world_sizes(self) -> list[int]:
        return sorted({world_size for _, world_size in self.cells})

    @property
    def has_imported_mfu(self) -> bool:
        return any(imported_mfu(case) for cases in self.cells.values() for case in cases)


class TopConfig(Chart[list[Grid]]):
    """The fastest layout of each shape on each number of ranks.

    How to read it
    --------------
    A cell names the layout with the most tokens per second of all that were tried there, and under it that figure; the
    deeper its colour, the more of the row's best throughput per rank it keeps. Where micro-batches differ, mbs 4×16 is
    16 of 4 sequences each; of several attempts the best counts, and where two are equally fast both are named. A cell
    without a figure says how its cases ended: refused, out of memory, timeout, failed. Grey: nothing was tried. Ranked
    by tokens per second, not by MFU, which some conventions count differently for different layouts: a second panel
    shows what an imported MFU would choose. On CPU ranks over Gloo the picture shows the method; which layout wins
    there says nothing about a GPU cluster.
    """

    title: ClassVar[str] = "The best layout for each shape and number of ranks"
    place: ClassVar[int] = 1

    def select(self, rows: Sequence[Row]) -> list[Grid] | None:
        found: dict[frozenset[tuple[str, object]], dict[Cell, list[Trained]]] = {}
        for case in trained(rows, "tokens_per_s", "mfu", "mfu_over_recomputed"):
            cells = found.setdefault(_work(case), defaultdict(list))
            cells[str(case.point.get("shape", "")), case.layout.world_size].append(case)
        grids = [Grid(_name(work, found), cells) for work, cells in found.items() if _is_a_choice(cells)]
        return grids or None

    def draw(self, data: list[Grid]) -> list[Panel]:
        figures = []
        for grid in data[:MOST]:
            figures.append(_heatmap(grid, "Fastest layout, tokens/s", throughput, digits))
            if grid.has_imported_mfu:
                figures.append(_heatmap(grid, "Highest imported MFU, %", imported_mfu, _percent))
        return figures

    def answer(self, data: list[Grid]) -> str:
        grid = data[0]
        parts = []
        for shape in grid.shapes:
            largest = [size for size in grid.world_sizes if best(grid.cells.get((shape, size), ()), throughput)]
            if largest:
                cases = grid.cells[shape, largest[-1]]
                fastest = best(cases, throughput)
                names = " or ".join(str(case.layout) for case in fastest)
                speed = format_value(throughput(fastest[0]), "tokens/s")
                measured = sum(case.is_measured for case in cases)
                parts.append(f"{shape} on {largest[-1]} ranks with {names} ({speed}, best of {measured})")
        if not parts:
            return ""
        ended = Counter(
            said(case.row.status) for cases in grid.cells.values() for case in cases if not case.is_measured
        )
        lost = ", ".join(f"{number:,} {status}" for status, number in ended.items())
        found = f"Fastest are {'; '.join(parts)}{f'. Without a figure: {lost}' if lost else ''}."
        return " ".join([found, *_by_mfu(grid)])

    def left_out(self, data: list[Grid]) -> str:
        return curves_note(len(data), MOST, "workloads")


Ranking = Callable[[Trained], float]
"""What cases of a cell are ranked by; 0 where a case has no such figure."""


def throughput(case: Trained) -> float:
    """Tokens per second of all ranks."""
    return case.value("tokens_per_s") or 0.0


def imported_mfu(case: Trained) -> float:
    """MFU as the file printed it that the case comes from."""
    return case.value("mfu", "imported") or 0.0


def configuration(case: Trained) -> tuple[object, ...]:
    """What was chosen, whatever attempt it was."""
    point = case.point
    return str(case.layout), point.get("micro_batch_size"), point.get("gradient_accumulation_steps")


def best(cases: Sequence[Trained], figure: Ranking) -> list[Trained]:
    """The cases with the highest figure, one of each configuration; several where they tie, none without a figure."""
    highest = max(map(figure, cases), default=0.0)
    tied = {configuration(case): case for case in reversed(cases) if highest and figure(case) == highest}
    return list(reversed(tied.values()))


def moved_by_mfu(grid: Grid) -> tuple[list[Cell], int]:
    """Cells of which the highest imported MFU names none of the fastest configurations, and the number of all cells."""
    pairs = {
        cell: (best(cases, throughput), best(cases, imported_mfu))
        for cell, cases in grid.cells.items()
        if best(cases, throughput) and best(cases, imported_mfu)
    }
    moved = [
        cell
        for cell, (fastest, highest) in pairs.items()
        if not {*map(configuration, fastest)} & {*map(configuration, highest)}
    ]
    return moved, len(pairs)


def mfu_ratios(grid: Grid) -> dict[tuple[str, bool], float]:
    """Imported over recomputed MFU, the median for each shape without and with pipeline stages."""
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for (shape, _), cases in grid.cells.items():
        for case in cases:
            if ratio := case.value("mfu_over_recomputed"):
                found[shape, case.layout.pp > 1].append(ratio)
    return {key: median(ratios) for key, ratios in found.items()}


def _by_mfu(grid: Grid) -> Iterator[str]:
    """What ranking by the imported MFU would change, and why."""
    moved, number = moved_by_mfu(grid)
    if not number:
        return
    yield f"Ranked by the imported MFU instead, {len(moved)} of {number} cells name another layout or micro-batch."
    ratios = mfu_ratios(grid)
    unlike = {key: ratio for key, ratio in ratios.items() if abs(ratio - 1) > _AS_EXPECTED}
    if unlike:
        words = (
            f"{ratio:.3f} for {shape}{' with pp > 1' if has_stages else ' without pp'}"
            for (shape, has_stages), ratio in unlike.items()
        )
        rest = {f"{ratio:.2f}" for key, ratio in ratios.items() if key not in unlike}
        others = f", and {' to '.join(dict.fromkeys((min(rest), max(rest))))} for all others" if rest else ""
        yield (
            f"The imported MFU does not follow from throughput alone: over the MFU recomputed from it, it is "
            f"{', '.join(words)}{others}."
        )


def _work(case: Trained) -> frozenset[tuple[str, object]]:
    left_out = FOLLOWS_LAYOUT | SHARING | CHOSEN | {"shape", "aux_loss"}
    return frozenset((name, value) for name, value in case.point.items() if name not in left_out)


def _name(work: frozenset[tuple[str, object]], every: Mapping[frozenset[tuple[str, object]], object]) -> str:
    """What tells this workload from the others."""
    common = frozenset.intersection(*every)
    return ", ".join(f"{name} {value}" for name, value in sorted(work - common, key=str))


def _is_a_choice(cells: Mapping[Cell, Sequence[Trained]]) -> bool:
    """Several cells, of which some had layouts of two axes to choose from, each tried in one way only."""
    choice = [cases for cases in cells.values() if sum(case.is_measured for case in cases) >= FEWEST]
    mixed = [cases for cases in choice if len({_axes(case) for case in cases}) >= FEWEST]
    once = all(len({_tried(case) for case in cases}) == len(cases) for cases in cells.values())
    return len(cells) > 1 and bool(mixed) and once


def _tried(case: Trained) -> tuple[object, ...]:
    return *configuration(case), case.point.get("attempt")


def _axes(case: Trained) -> tuple[str, ...]:
    return tuple(axis for axis in ("pp", "dp", "cp", "tp") if case.layout.uses(axis))


def _percent(mfu: float) -> str:
    return f"{100 * mfu:.1f}"


def _heatmap(grid: Grid, title: str, figure: Ranking, text: Callable[[float], str]) -> Panel:
    from matplotlib.patches import Rectangle

    shapes, sizes = grid.shapes, grid.world_sizes
    name = _names(grid.cells.values())
    words = {
        cell: _words(cases, best(cases, figure), name, lambda case: text(figure(case)))
        for cell, cases in grid.cells.items()
    }
    lines = [line for upper, lower in words.values() for line in (*upper.split("\n"), *lower.split("\n"))]
    most = max((upper.count("\n") + lower.count("\n") + 2 for upper, lower in words.values()), default=2)
    width = max(1.55, 0.075 * max(map(len, lines), default=0))
    height = 0.62 + 0.15 * max(0, most - 3)
    drawn, axes = canvas(
        f"{title}{f': {grid.name}' if grid.name else ''}",
        width=max(5.2, 1.2 + width * len(sizes)),
        height=1.1 + height * len(shapes),
    )
    for row, shape in enumerate(shapes):
        tops = {size: best(grid.cells.get((shape, size), ()), figure) for size in sizes}
        kept = {size: _kept(top[0], figure) for size, top in tops.items() if top}
        for column, size in enumerate(sizes):
            colour, depth = (PALETTE[0], 0.08 + 0.42 * kept[size] / max(kept.values())) if size in kept else (GRID, 0.6)
            if grid.cells.get((shape, size)) and size not in kept:
                colour, depth = PAPER, 1.0
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, alpha=depth, edgecolor=GRID, linewidth=1.0)
            )
            upper, lower = words.get((shape, size), ("", "not tried"))
            axes.text(column, row - 0.14, upper, ha="center", va="center", fontsize=7.5, color=INK, fontweight="bold")
            axes.text(column, row + 0.2, lower, ha="center", va="center", fontsize=7, color=MUTED)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    axes.set_xticks(range(len(sizes)), [f"{size}" for size in sizes])
    axes.set_yticks(range(len(shapes)), shapes)
    axes.set_xlabel("ranks")
    axes.grid(False)
    entries = []
    for row, shape in enumerate(shapes):
        for column, size in enumerate(sizes):
            top = best(grid.cells.get((shape, size), ()), figure)
            upper, lower = words.get((shape, size), ("", "not tried"))
            cells = (shape, f"{size}", " or ".join(upper.split("\n")), figure(top[0]) if top else None, lower)
            area = (column - 0.5, row - 0.5, column + 0.5, row + 0.5)
            entries.append(Entry(cells, top[0].row.case if top else "", area))
    names = ("shape", "ranks", "best")
    unit = "tokens/s" if figure is throughput else "fraction"
    return Panel(drawn, (*map(Column, names), Column("figure", unit), Column("note")), tuple(entries))


def _kept(case: Trained, figure: Ranking) -> float:
    """The figure of one rank: throughput is of all, MFU of each."""
    return figure(case) / case.layout.world_size if figure is throughput else figure(case)


def _names(cells: Iterable[Sequence[Trained]]) -> Callable[[Trained], str]:
    """The layout, and the micro-batches where one layout was tried with several."""
    several = any(
        len({configuration(case) for case in cases}) > len({case.layout for case in cases}) for cases in cells
    )

    def name(case: Trained) -> str:
        micro, steps = configuration(case)[1:]
        if not several or micro is None:
            return str(case.layout)
        return f"{case.layout}, mbs {micro}" + (f"×{steps}" if steps else "")

    return name


def _words(
    cases: Sequence[Trained], tops: Sequence[Trained], name: Callable[[Trained], str], text: Callable[[Trained], str]
) -> tuple[str, str]:
    """What stands in a cell: the layout, and below it its figure and how others ended."""
    ended = Counter(said(case.row.status) for case in cases if not case.is_measured).most_common(2)
    lost = ", ".join(f"× {number} {status}" for status, number in ended)
    if not tops:
        return "", lost
    figure = f"{text(tops[0])}, best of {sum(case.is_measured for case in cases)}"
    more = [f"and {len(tops) - MOST_TIED} more"] if len(tops) > MOST_TIED else []
    return "\n".join([*map(name, tops[:MOST_TIED]), *more]), f"{figure}\n{lost}" if lost else figure
