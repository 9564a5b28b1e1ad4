from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.cases.trained import Trained
from clusterbench.charts import IN_OBSERVATIONS, Chart, Section, curves_note
from clusterbench.drawing.bars import Bars
from clusterbench.drawing.panel import Column, Entry, Panel
from clusterbench.drawing.style import INK, LETTERS, PALETTE, canvas
from clusterbench.job.passes import EXPERTS
from clusterbench.run_folder.attempts import History
from clusterbench.run_folder.records import MOST as LARGEST
from clusterbench.words import legible

if TYPE_CHECKING:
    pass

MOST_BARS, MOST_CASES = 24, 4
MOST_RANKS, MOST_COLUMNS = 24, 64
MOST_WITH_FIGURES = 12
"""Of more columns a cell has no room for its figure."""

EVEN = 0.005
"""Loads that differ by less are even: half a percent."""

IMBALANCE = {"ranks": "Rows of the fullest rank over the mean", "experts": "A rank's fullest expert over its mean"}

TokenCounts = tuple[tuple[int, ...], ...]
"""Rows of tokens, by rank, and by layer or by expert."""


@dataclass(frozen=True)
class Load:
    """What each rank of a case got of its last micro-batch.

    ``ranks`` holds the rows of all of a rank's experts together, by layer. ``experts`` holds those of each of a rank's
    experts in the layer that is least even; empty where they were not recorded.
    """

    case: str
    name: str
    ranks: TokenCounts
    experts: TokenCounts = ()

    @property
    def worst(self) -> tuple[float, int, int]:
        """The largest load over the even one, its rank and its layer."""
        return max(
            (self.ranks[rank][layer] / even, rank, layer)
            for layer, even in enumerate(evens(self.ranks))
            for rank in range(len(self.ranks))
        )


@dataclass(frozen=True)
class Loads:
    """The imbalance of every case, and the loads of those that are uneven, the worst first."""

    cases: list[Trained]
    labels: list[str]
    uneven: list[Load]


class ExpertLoad(Chart[Loads]):
    """How evenly tokens spread over ranks and their experts.

    How to read it
    --------------
    A mixture sends each token to a few experts, and each arrival is a row. First, the rows of the fullest rank over the
    mean rank, in the worst layer: all others wait for it, so a layer takes about so many times as long as with an even
    load, which is 1. Then the fullest of a rank's own experts over their mean: it makes products uneven and keeps no
    other rank waiting. Below, rank by layer, the load over the even one: orange has more, blue less, white is even, and
    a frame marks the fullest rank of each layer. A rank that is full in every layer has popular experts; a load that
    changes from layer to layer is the router's, and training with an auxiliary loss evens it out. In a pipeline each
    rank counts its own layers. Rows are those of the last micro-batch of one step.
    """

    title: ClassVar[str] = "Load of experts: rows by rank and layer"
    section: ClassVar[Section] = "step"
    after: ClassVar[str] = "traffic"

    def select(self, reading: Reading) -> Loads | None:
        known = reading.cases_with("expert_imbalance")
        cases = [case for case in reading.trained if case.row.case in known and case.details("expert_imbalance")]
        if not cases:
            return None
        name = names(case.row for case in cases)
        label = {case.row.case: name(case.row) for case in cases}
        labelled = [history for history in reading.histories if history.case.id in label]
        loads = [load for history in labelled if (load := _load(history, label[history.case.id]))]
        # Cases that differ in how rows travel alone, by overlap for instance, have the same load: the first stands.
        distinct = {load.ranks: load for load in reversed(loads)}.values()
        uneven = sorted((load for load in distinct if load.worst[0] > 1 + EVEN), key=lambda load: -load.worst[0])
        return Loads(cases, list(label.values()), uneven)

    def draw(self, data: Loads) -> list[Panel]:
        shown, labels = data.cases[:MOST_BARS], data.labels[:MOST_BARS]
        panels = []
        for part, title in IMBALANCE.items():
            values = [case.value("expert_imbalance", part) for case in shown]
            if any(values):
                even = {part: [None if value is None else 1.0 for value in values]}
                panels.append(
                    Bars(
                        title, labels, {part: values}, "1", expected=even, cases=[case.row.case for case in shown]
                    ).panel()
                )
        for load in data.uneven[:MOST_CASES]:
            panels.append(_heatmap(load, load.ranks, "layer"))
            if load.experts:
                panels.append(_heatmap(load, load.experts, "expert"))
        return panels

    def answer(self, data: Loads) -> str:
        if data.uneven:
            return _sentence(data.uneven[0])
        known = [value for case in data.cases if (value := case.value("expert_imbalance", "ranks")) is not None]
        if known and max(known) <= 1 + EVEN:
            return "Every rank gets an even load of tokens in every layer."
        return ""

    def left_out(self, data: Loads) -> str:
        notes = [
            curves_note(len(data.cases), MOST_BARS, "cases"),
            curves_note(len(data.uneven), MOST_CASES, "uneven loads, layer by layer", IN_OBSERVATIONS),
        ]
        return " ".join(filter(None, notes))


def evens(counts: TokenCounts) -> list[float]:
    """The mean load of each column; 1 where nothing arrived."""
    return [fmean(column) or 1.0 for column in zip(*counts, strict=True)]


def _load(history: History, name: str) -> Load | None:
    """None where the record holds no rows, or not as many of each rank."""
    loads = EXPERTS.readable(history.pooled) if history.pooled else []
    ranks = _counts([load.rows for load in loads])
    if not ranks or len(ranks) != history.case.world_size:
        return None
    drawn = Load(history.case.id, name, ranks)
    _, _, layer = drawn.worst
    by_layer = [load.expert_rows for load in loads]
    experts = _counts([layers[layer] for layers in by_layer if len(layers) == len(ranks[0])])
    is_whole = len(experts) == len(ranks) and len(experts[0]) > 1
    return Load(history.case.id, name, ranks, experts) if is_whole else drawn


def _counts(rows_by_rank: Sequence[Sequence[int]]) -> TokenCounts:
    """Plausible numbers of rows, as many of each rank; otherwise nothing."""
    is_whole = len({len(rows) for rows in rows_by_rank}) == 1 and all(
        0 <= number <= LARGEST for rows in rows_by_rank for number in rows
    )
    return tuple(map(tuple, rows_by_rank)) if is_whole and rows_by_rank[0] else ()


def _sentence(load: Load) -> str:
    over, rank, layer = load.worst
    even = evens(load.ranks)
    num_layers = len(even)
    often = sum(
        own > (1 + EVEN) * even[number] and own == max(of_layer)
        for number, (own, of_layer) in enumerate(zip(load.ranks[rank], zip(*load.ranks, strict=True), strict=True))
    )
    sentence = (
        f"{legible(load.name)}: in layer {layer} rank {rank} gets {over:.2f} times the even load "
        f"({load.ranks[rank][layer]:,} rows, even is {even[layer]:,.0f}), and the others wait for it"
    )
    if num_layers > 1:
        sentence += f"; it is the fullest in {often} of {num_layers} layers"
    return f"{sentence}."


def _heatmap(load: Load, counts: TokenCounts, what: str) -> Panel:
    """Rank by column, as the load over the even one of that column; of experts over the even one of the layer."""
    from matplotlib.patches import Rectangle

    of_experts = what == "expert"
    even = [fmean(rows for loads in counts for rows in loads) or 1.0] * len(counts[0]) if of_experts else evens(counts)
    over = [[rows / even[column] for column, rows in enumerate(loads)] for loads in counts]
    order = sorted(range(len(counts)), key=lambda rank: -max(over[rank]))[:MOST_RANKS]
    shown, columns = sorted(order), min(len(counts[0]), MOST_COLUMNS)
    most = max(abs(value - 1) for ratios in over for value in ratios) or 1.0
    figure, axes = canvas(
        _title(load, what), width=max(3.4, min(7.2, 1.6 + 0.46 * columns)), height=1.4 + 0.25 * len(shown)
    )
    entries = []
    for place, rank in enumerate(shown):
        for column in range(columns):
            value = over[rank][column]
            area = (column - 0.5, place - 0.5, column + 0.5, place + 0.5)
            colour, depth = PALETTE[1 if value > 1 else 0], 0.7 * abs(value - 1) / most
            axes.add_patch(Rectangle(area[:2], 1, 1, facecolor=colour, alpha=depth, edgecolor="none"))
            if columns <= MOST_WITH_FIGURES:
                axes.text(column, place, f"{value:.2f}", ha="center", va="center", fontsize=LETTERS, color=INK)
            note = f"even is {even[column]:,.0f}"
            entries.append(
                Entry((f"rank {rank}", f"{what} {column}", float(counts[rank][column]), value, note), load.case, area)
            )
    for column in range(columns):
        fullest = max(range(len(shown)), key=lambda place: over[shown[place]][column])
        if over[shown[fullest]][column] > 1 + EVEN:
            inset = (column - 0.46, fullest - 0.46)
            axes.add_patch(Rectangle(inset, 0.92, 0.92, fill=False, edgecolor=PALETTE[1], linewidth=1.4))
    step = -(-columns // 16)
    axes.set_xticks(range(0, columns, step), [str(column) for column in range(0, columns, step)])
    axes.set_yticks(range(len(shown)), [f"rank {rank}" for rank in shown])
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("expert of the rank" if of_experts else "layer with experts")
    axes.grid(False)
    numbers = (Column("rows", "1"), Column("over even", "1"), Column("note"))
    return Panel(figure, (Column("rank"), Column(what), *numbers), tuple(entries))


def _title(load: Load, what: str) -> str:
    name = legible(load.name)
    if what == "expert":
        return f"Load of each expert over the even one\n{name}, layer {load.worst[2]}"
    return f"Load of each rank over the even one\n{name}"
