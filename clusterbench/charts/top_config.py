from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import GRID, INK, MUTED, PALETTE, PAPER, panel
from clusterbench.charts._selection import FOLLOWS_LAYOUT, SHARING, Trained, curves_note, said, trained
from clusterbench.rows import Row
from clusterbench.scale import digits
from clusterbench.units import format_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 4
FEWEST = 3  # layouts that make a choice


@dataclass(frozen=True)
class Grid:
    """One workload: what was tried of each shape on each number of ranks."""

    name: str
    cells: Mapping[tuple[str, int], Sequence[Trained]]

    @property
    def shapes(self) -> list[str]:
        return list(dict.fromkeys(shape for shape, _ in self.cells))

    @property
    def world_sizes(self) -> list[int]:
        return sorted({world_size for _, world_size in self.cells})


class TopConfig(Chart[list[Grid]]):
    """The fastest layout of each shape on each number of ranks.

    How to read it
    --------------
    A cell names the layout with the most tokens per second of all that were tried there, and under it that figure; the
    deeper its colour, the more of the row's best throughput per rank it keeps. A cell without a figure says how its
    cases ended: refused, out of memory, timeout, failed. Grey: nothing was tried. Ranked by tokens per second, not by
    MFU, which some conventions count differently for different layouts. On CPU ranks over Gloo the picture shows the
    method; which layout wins there says nothing about a GPU cluster.
    """

    title: ClassVar[str] = "The best layout for each shape and number of ranks"
    place: ClassVar[int] = 1

    def select(self, rows: Sequence[Row]) -> list[Grid] | None:
        found: dict[frozenset[tuple[str, object]], dict[tuple[str, int], list[Trained]]] = {}
        for case in trained(rows, "tokens_per_s"):
            cells = found.setdefault(_work(case), defaultdict(list))
            cells[str(case.point.get("shape", "")), case.layout.world_size].append(case)
        grids = [Grid(_name(work, found), cells) for work, cells in found.items() if _is_a_choice(cells)]
        return grids or None

    def draw(self, data: list[Grid]) -> list[Figure]:
        return [_heatmap(grid) for grid in data[:MOST]]

    def answer(self, data: list[Grid]) -> str:
        grid = data[0]
        parts = []
        for shape in grid.shapes:
            largest = [size for size in grid.world_sizes if _best(grid.cells.get((shape, size), ()))]
            if largest:
                cases = grid.cells[shape, largest[-1]]
                best = _best(cases)
                assert best is not None
                speed = format_value(best.value("tokens_per_s") or 0.0, "tokens/s")
                measured = sum(case.is_measured for case in cases)
                parts.append(f"{shape} on {largest[-1]} ranks with {best.layout} ({speed}, best of {measured})")
        ended = Counter(
            said(case.row.status) for cases in grid.cells.values() for case in cases if not case.is_measured
        )
        lost = ", ".join(f"{number:,} {status}" for status, number in ended.items())
        return f"Fastest are {'; '.join(parts)}{f'. Without a figure: {lost}' if lost else ''}." if parts else ""

    def left_out(self, data: list[Grid]) -> str:
        return curves_note(len(data), MOST, "workloads")


def _work(case: Trained) -> frozenset[tuple[str, object]]:
    left_out = FOLLOWS_LAYOUT | SHARING | {"shape", "aux_loss"}
    return frozenset((name, value) for name, value in case.point.items() if name not in left_out)


def _name(work: frozenset[tuple[str, object]], every: Mapping[frozenset[tuple[str, object]], object]) -> str:
    """What tells this workload from the others."""
    common = frozenset.intersection(*every)
    return ", ".join(f"{name} {value}" for name, value in sorted(work - common, key=str))


def _is_a_choice(cells: Mapping[tuple[str, int], Sequence[Trained]]) -> bool:
    """Several cells, of which some had layouts of two axes to choose from, each tried in one way only."""
    choice = [cases for cases in cells.values() if sum(case.is_measured for case in cases) >= FEWEST]
    mixed = [cases for cases in choice if len({_axes(case) for case in cases}) >= FEWEST]
    once = all(len({case.layout for case in cases}) == len(cases) for cases in cells.values())
    return len(cells) > 1 and bool(mixed) and once


def _axes(case: Trained) -> tuple[str, ...]:
    return tuple(axis for axis in ("pp", "dp", "cp", "tp") if case.layout.uses(axis))


def _best(cases: Sequence[Trained]) -> Trained | None:
    timed = [case for case in cases if case.value("tokens_per_s")]
    return max(timed, key=lambda case: case.value("tokens_per_s") or 0.0, default=None)


def _heatmap(grid: Grid) -> Figure:
    from matplotlib.patches import Rectangle

    shapes, sizes = grid.shapes, grid.world_sizes
    title = f"Fastest layout, tokens/s{f': {grid.name}' if grid.name else ''}"
    figure, axes = panel(title, width=max(5.2, 1.2 + 1.55 * len(sizes)), height=1.1 + 0.62 * len(shapes))
    for row, shape in enumerate(shapes):
        best = {size: _best(grid.cells.get((shape, size), ())) for size in sizes}
        per_rank = {size: (one.value("tokens_per_s") or 0.0) / size for size, one in best.items() if one}
        for column, size in enumerate(sizes):
            cases, one = grid.cells.get((shape, size), ()), best[size]
            colour, depth = (PALETTE[0], 0.08 + 0.42 * per_rank[size] / max(per_rank.values())) if one else (GRID, 0.6)
            if cases and not one:
                colour, depth = PAPER, 1.0
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, alpha=depth, edgecolor=GRID, linewidth=1.0)
            )
            upper, lower = _words(cases, one)
            axes.text(column, row - 0.14, upper, ha="center", va="center", fontsize=7.5, color=INK, fontweight="bold")
            axes.text(column, row + 0.2, lower, ha="center", va="center", fontsize=7, color=MUTED)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    axes.set_xticks(range(len(sizes)), [f"{size}" for size in sizes])
    axes.set_yticks(range(len(shapes)), shapes)
    axes.set_xlabel("ranks")
    axes.grid(False)
    return figure


def _words(cases: Sequence[Trained], best: Trained | None) -> tuple[str, str]:
    """What stands in a cell: the layout, and below it its figure and how others ended."""
    if not cases:
        return "", "not tried"
    ended = Counter(said(case.row.status) for case in cases if not case.is_measured).most_common(2)
    lost = ", ".join(f"× {number} {status}" for status, number in ended)
    if best is None:
        return "", lost
    figure = f"{digits(best.value('tokens_per_s') or 0.0)}, best of {sum(case.is_measured for case in cases)}"
    return str(best.layout), f"{figure}\n{lost}" if lost else figure
