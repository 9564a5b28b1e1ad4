from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.heatmaps import Heatmap
from clusterbench.cases.ranking import best, outcome, percent, throughput
from clusterbench.cases.trained import Trained
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.drawing.lines import Lines, Mark, Series, mark
from clusterbench.drawing.panel import Panel
from clusterbench.pricing.knee import FALL, fallen

MOST, MOST_ROWS = 2, 6
_TOKENS = 1e12

Figure = Callable[[Trained], float | None]
"""Of the fastest case of a cell."""


@dataclass(frozen=True)
class Sizes:
    """One workload: the fastest configuration of each row on each number of ranks.

    Attributes
    ----------
    device_bytes
        What a rank's device has; None where it is not on record.
    """

    heatmap: Heatmap
    device_bytes: float | None

    @cached_property
    def fastest(self) -> dict[str, dict[int, Trained]]:
        """By row and number of ranks, where any was measured; rows with one number of ranks are not there."""
        found = {row: self._of_row(row) for row in self.heatmap.rows}
        return {row: of_sizes for row, of_sizes in found.items() if len(of_sizes) > 1}

    def _of_row(self, row: str) -> dict[int, Trained]:
        cells = {size: self.heatmap.cells.get((row, size), ()) for size in self.heatmap.world_sizes}
        return {size: tops[0] for size, cases in cells.items() if (tops := best(cases, throughput))}

    def curves(self, figure: Figure) -> list[Series]:
        """A curve for each row; empty where no case has such a figure."""
        rows = list(self.fastest)[:MOST_ROWS]
        drawn = [Series(row, tuple(self._marks(row, figure))) for row in rows]
        return [curve for curve in drawn if curve.measured]

    def _marks(self, row: str, figure: Figure) -> Iterator[Mark]:
        for size in self.heatmap.world_sizes:
            if (case := self.fastest[row].get(size)) is not None:
                yield replace(mark(size, case.row), value=figure(case), low=None, high=None, expected=None, status="ok")
            elif cases := self.heatmap.cells.get((row, size)):
                ((status, _),) = Counter(map(outcome, cases)).most_common(1)
                yield Mark(size, None, status=status)

    def knee(self, row: str) -> int | None:
        """The number of ranks from where on each of them does too little; None where there is none."""
        sizes = list(self.fastest[row])
        place = fallen([per_rank(case) for case in self.fastest[row].values()])
        return None if place is None else sizes[place]


def per_rank(case: Trained) -> float:
    """Tokens per second of each rank."""
    return throughput(case) / case.layout.world_size


class BestBySize(Chart[list[Sizes]]):
    """What the fastest configuration reaches on more ranks: how much each of them does, what it costs, what it holds.

    How to read it
    --------------
    Each point is the fastest configuration of one cell above; point at it for its case. Left: tokens per second of one
    GPU (or CPU rank), of the most that the row reaches on any number of them. With one batch for all sizes each of
    many has less to do, and below the dotted level, 80 %, more of them mostly wait. The knee is the first number of
    GPUs on which one does over 20 % less than on fewer. Then the hours of all GPUs together for 10^12 tokens, which is
    what training costs, and the most memory that a rank held. All axes of numbers of GPUs are logarithmic. A cross is
    a size on which nothing has a figure.
    """

    title: ClassVar[str] = "The best configuration against the number of ranks"
    section: ClassVar[Section] = "comparison"
    after: ClassVar[str] = "predicted_top_config"
    is_aside: ClassVar[bool] = True

    def select(self, reading: Reading) -> list[Sizes] | None:
        card = reading.plan.cluster.accelerator
        room = card.memory_bytes if card is not None else None
        found = [Sizes(heatmap, room) for heatmap in reading.heatmaps]
        return [sizes for sizes in found if sizes.fastest] or None

    def draw(self, data: list[Sizes]) -> list[Panel]:
        return [panel for sizes in data[:MOST] for panel in _panels(sizes)]

    def answer(self, data: list[Sizes]) -> str:
        sizes = data[0]
        heatmap = sizes.heatmap
        said = [
            f"{row} on {heatmap.where(knee)}" if knee else f"{row} none up to {max(sizes.fastest[row])}"
            for row in list(sizes.fastest)[:MOST_ROWS]
            for knee in [sizes.knee(row)]
        ]
        return (
            f"The knee, the first size on which a {heatmap.noun} does over {percent(FALL)} less than on fewer: "
            f"{'; '.join(said)}."
        )

    def left_out(self, data: list[Sizes]) -> str:
        rows = max(len(sizes.fastest) for sizes in data[:MOST])
        notes = (
            curves_note(len(data), MOST, "workloads", "the heatmap has the others"),
            curves_note(rows, MOST_ROWS, "rows", "the heatmap has the others"),
        )
        return " ".join(filter(None, notes))


def _panels(sizes: Sizes) -> Iterator[Panel]:
    heatmap = sizes.heatmap
    noun, ticks = heatmap.noun, {float(size): f"{size}" for size in heatmap.world_sizes}
    most = {row: max(map(per_rank, of_sizes.values())) for row, of_sizes in sizes.fastest.items()}
    row_of = {case.row.case: row for row, of_sizes in sizes.fastest.items() for case in of_sizes.values()}
    name = f"\n{heatmap.name}" if heatmap.name else ""

    def kept(case: Trained) -> float:
        return per_rank(case) / most[row_of[case.row.case]]

    def hours(case: Trained) -> float:
        return _TOKENS / per_rank(case) / 3600

    yield Lines(
        f"Tokens/s per {noun}, as a share of the row's best{name}", sizes.curves(kept), "fraction", ticks, f"{noun}s",
        levels={percent(1 - FALL): 1 - FALL},
    ).panel()  # fmt: skip
    yield Lines(
        f"{noun}-hours for 10^12 tokens{name}", sizes.curves(hours), "1", ticks, f"{noun}s", logarithmic=True
    ).panel()
    if curves := sizes.curves(Trained.whole_memory):
        levels = {} if sizes.device_bytes is None else {"all it has": sizes.device_bytes}
        yield Lines(f"Peak memory of a {noun}{name}", curves, "B", ticks, f"{noun}s", levels=levels).panel()
