from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.cases.parts import in_order, named, parts_of, told
from clusterbench.cases.trained import said, workloads
from clusterbench.charts import Chart, Section, curves_note
from clusterbench.charts._part_colours import part_colours
from clusterbench.drawing.bars import Bars
from clusterbench.formulas.attribution import REST, Part
from clusterbench.rows import Row
from clusterbench.words import Word

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST = 24
MUCH = 0.15
"""Of a step on GPUs, a rest that is worth a sentence."""


@dataclass(frozen=True)
class Bar:
    """The step of one case; without parts where it ended otherwise."""

    row: Row
    parts: Mapping[Part, float]
    name: Callable[[Row], str]

    @property
    def label(self) -> str:
        """Put into words when it is asked for: of many bars few are drawn."""
        return self.name(self.row)


class StepBreakdown(Chart[list[Bar]]):
    """Where the time of a training step goes.

    How to read it
    --------------
    One bar for each case, as long as its step: the mean over ranks, so that the parts add up to it.

    compute: operators run, whatever is transferred behind them. exposed: nothing is computed and a transfer along that
    axis is under way; not longer than on the rank that was in it for the shortest time, for the others only waited.
    bubble: waiting for another pipeline stage. imbalance: waiting for a slower rank with the same work, and that rank's
    own delay. rest: neither computing nor communicating, which is Python, the host and the launching of kernels.

    The parts were seen in one traced step, which is slower than a timed one, and are scaled to the measured step time;
    on GPUs what tracing takes is the host's, and taken from the rest. A GPU that has a large rest waits for its host. A
    CPU whose ranks share cores shows much waiting that GPUs would not.
    """

    title: ClassVar[str] = "Where the time of a step goes"
    section: ClassVar[Section] = "step"
    after: ClassVar[str] = "expert_load"
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "exposed",
            "Of communication, the time in which it is under way and the rank computes nothing: what a step is longer "
            "by for it.",
        ),
        Word("bubble", "Time in which a rank of a pipeline waits for another stage.", "bubbles"),
        Word(
            "imbalance",
            "Of a step, the time in which a rank waits for a slower one with the same work, and its own delay; of "
            "experts, how much more the fullest has than the mean.",
        ),
    )

    def select(self, reading: Reading) -> list[Bar] | None:
        parts = parts_of(reading.rows_of("step_part"), "step_part")
        if not parts:
            return None
        steps = {case.row.case: case.row for case in reading.trained_with("step_part") if case.row.status != "refused"}
        workload, name = workloads(steps.values()), names(steps.values())
        drawn = {workload(row) for case, row in steps.items() if case in parts}
        # A case that ran out of memory keeps its place among the bars.
        bars = [
            Bar(row, parts.get(case, {}), name)
            for case, row in steps.items()
            if case in parts or (workload(row) in drawn and row.status != "ok")
        ]
        return bars or None

    def draw(self, data: list[Bar]) -> list[Panel]:
        shown = data[:MOST]
        parts = in_order(bar.parts for bar in shown)
        return [
            Bars(
                "Step time by what is done in it",
                [bar.label for bar in shown],
                {named(part): [bar.parts.get(part) for bar in shown] for part in parts},
                "s",
                missing={number: said(bar.row.status) for number, bar in enumerate(shown) if not bar.parts},
                cases=[bar.row.case for bar in shown],
                colours=part_colours(parts),
            ).panel()
        ]

    def answer(self, data: list[Bar]) -> str:
        largest = max(
            (bar for bar in data if bar.parts), key=lambda bar: (bar.row.world_size, -sum(bar.parts.values()))
        )
        whole_s = sum(largest.parts.values())
        (first, first_s), *others = sorted(largest.parts.items(), key=lambda item: -item[1])
        words = [f"{100 * first_s / whole_s:.0f} % is {told(first)}"]
        words += [f"{100 * part_s / whole_s:.0f} % {told(part)}" for part, part_s in others if part_s >= 0.01 * whole_s]
        return " ".join([f"In a step of {largest.label}, {', '.join(words)}.", *_waits_for_host(data)])

    def left_out(self, data: list[Bar]) -> str:
        return curves_note(len(data), MOST, "cases")


def _waits_for_host(bars: Sequence[Bar]) -> Iterator[str]:
    """The step of which GPUs spend most waiting for their hosts, where that is much, and what shortens it."""
    shares = [(bar.parts.get((REST, ""), 0.0) / sum(bar.parts.values()), bar) for bar in bars if bar.parts]
    of_gpus = [(share, bar) for share, bar in shares if bar.row.device == "cuda"]
    if not of_gpus:
        return
    share, bar = max(of_gpus, key=lambda pair: pair[0])
    if share >= MUCH:
        compiling = "" if bar.row.point.get("compile") else "compile: true, or "
        yield (
            f"GPUs wait for their hosts most in {bar.label}, {100 * share:.0f} % of its step: {compiling}more tokens a "
            "micro-batch give them more to do at each launch."
        )
