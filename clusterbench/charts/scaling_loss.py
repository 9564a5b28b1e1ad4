from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names, sharing
from clusterbench.cases.parts import in_order, named, parts_of, told
from clusterbench.cases.scaling import Sweep, sweeps
from clusterbench.charts import Chart, Section, curves_note, said_of
from clusterbench.charts._part_colours import part_colours
from clusterbench.drawing.bars import Bars
from clusterbench.drawing.panel import Column
from clusterbench.formulas.attribution import COMPUTE, Part
from clusterbench.rows import Row

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST, MOST_SWEEPS = 16, 3
WORTH_SAYING = 0.005  # points: below, a part is rounded to nothing


@dataclass(frozen=True)
class Lost:
    """What one run lost of the smallest run's throughput per rank, by part; all are shares of that throughput."""

    row: Row
    shares: Mapping[Part, float]

    @property
    def whole(self) -> float:
        return sum(self.shares.values())

    @property
    def losses(self) -> dict[Part, float]:
        return {part: share for part, share in self.shares.items() if share > 0}

    @property
    def gains(self) -> float:
        """Parts of which the run has less than the smallest, as one positive share."""
        return -sum(share for share in self.shares.values() if share < 0)


@dataclass(frozen=True)
class Losses:
    sweep: Sweep
    runs: tuple[Lost, ...]


class ScalingLoss(Chart[list[Losses]]):
    """What keeps each run from the throughput per rank of the smallest one.

    How to read it
    --------------
    One bar a run: each part is what its step has more of than the smallest run's step, scaled to the same work per
    rank, as a share of the step, so that it counts points of throughput per rank. The diamond is the loss as a whole:
    the parts less what the run has less of than the smallest run, the gains in the table behind.

    compute: the same work takes longer, for smaller matrices, work that each rank repeats, or cores and memory that
    ranks share. The other parts are those of the chart of where a step's time goes: transfers along an axis that
    nothing hides, waiting for another stage, waiting for slower ranks, and Python, the host and launches.
    """

    title: ClassVar[str] = "What scaling loses, and where"
    section: ClassVar[Section] = "scaling"
    after: ClassVar[str] = "scaling_efficiency"

    def select(self, reading: Reading) -> list[Losses] | None:
        parts = parts_of(reading.rows_of("scaling_loss_part"), "scaling_loss_part")
        if not parts:
            return None
        step_s = {row.case: row.value for row in reading.rows_of("step_time") if row.value}
        losses = []
        for sweep in sweeps(reading.rows_of("scaling_efficiency"), reading.rows_of("tokens_per_s_per_rank")):
            runs = tuple(
                Lost(row, {part: lost_s / time_s for part, lost_s in parts[row.case].items()})
                for row in sweep.runs
                if row.case in parts and (time_s := step_s.get(row.case))
            )
            if runs:
                losses.append(Losses(sweep, runs))
        return losses or None

    def draw(self, data: list[Losses]) -> list[Panel]:
        return [_panel(losses) for losses in data[:MOST_SWEEPS]]

    def answer(self, data: list[Losses]) -> str:
        sweep, runs = data[0].sweep, data[0].runs
        most = max(sweep.size(run.row) for run in runs)
        best = min((run for run in runs if sweep.size(run.row) == most), key=lambda run: run.whole)
        name = names((run.row for run in runs), quiet=sharing())
        start = f"From {sweep.size(sweep.smallest[0])} to {most} {sweep.sizes}, {name(best.row)}"
        if best.whole < WORTH_SAYING:
            return said_of(sweep.name, f"{start} loses nothing of the throughput per rank.")
        worst_first = sorted(best.losses.items(), key=lambda item: -item[1])
        words = [f"{100 * share:.0f} {_more(part)}" for part, share in worst_first if share >= WORTH_SAYING]
        gained = f", less {100 * best.gains:.0f} gained" if best.gains >= WORTH_SAYING else ""
        whole = f"{100 * best.whole:.0f} % of the throughput per rank"
        return said_of(sweep.name, f"{start} loses {whole}; in points: {', '.join(words)}{gained}.")

    def left_out(self, data: list[Losses]) -> str:
        drawn = sum(len(losses.runs[:MOST]) for losses in data[:MOST_SWEEPS])
        return curves_note(sum(len(losses.runs) for losses in data), drawn, "runs")


def _more(part: Part) -> str:
    return f"longer {told(part)}" if part[0] == COMPUTE else told(part)


def _panel(losses: Losses) -> Panel:
    sweep, shown = losses.sweep, losses.runs[:MOST]
    parts = in_order(run.losses for run in shown)
    name = names((run.row for run in losses.runs), quiet=sharing())
    panel = Bars(
        f"{sweep.title}: lost throughput per rank" + (f"\n{sweep.name}" if sweep.name else ""),
        [f"{sweep.size(run.row)} {sweep.sizes}: {name(run.row)}" for run in shown],
        {named(part): [run.losses.get(part) for run in shown] for part in parts},
        "fraction",
        expected={},  # so that the figure beside a bar is that of the diamond
        markers=[max(0.0, run.whole) for run in shown],
        marker_name="lost in all",
        cases=[run.row.case for run in shown],
        colours=part_colours(parts),
    ).panel()
    columns = (*panel.columns, Column("gained", "fraction"))
    entries = tuple(
        replace(entry, cells=(*entry.cells, run.gains or None)) for entry, run in zip(panel.entries, shown, strict=True)
    )
    return replace(panel, columns=columns, entries=entries)
