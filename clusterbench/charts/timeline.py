from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.cases.pipelines import pipeline_step
from clusterbench.charts import IN_OBSERVATIONS, Chart, Section, curves_note
from clusterbench.drawing.spans import Span, spans
from clusterbench.job.passes import TIMELINE, Computed
from clusterbench.run_folder.attempts import History
from clusterbench.units import scale
from clusterbench.words import legible, listed

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST_CASES, MOST_RANKS = 8, 16
WAITING = ""
KINDS = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights", WAITING: "waiting"}

SHORTEST_WAIT = 0.01
"""As a share of the step: a shorter gap is the loop around the actions."""


@dataclass(frozen=True)
class Step:
    """One step of a pipeline as its ranks saw it, and below it the same schedule played with the times that were seen.

    ``idle`` is the idle share of the step, mean over ranks, and ``simulated`` that of the schedule as played; None
    where what was seen is not what the schedule says. The ranks at ``where`` wait ``longer_s`` more than as played.
    """

    case: str
    name: str
    lines: tuple[str, ...]
    spans: tuple[Span, ...]
    idle: float
    simulated: float | None = None
    where: str = ""
    longer_s: float = 0.0


class Timeline(Chart[list[Step]]):
    """What each rank of a pipeline computed when, in one step, above the same schedule played without messages.

    How to read it
    --------------
    A line is a rank of the pipeline, the first stage on top; time begins when the rank left a barrier. The upper lines
    are what was measured; where a rank waits for a message or for its turn, there is a thin grey line. The lower ones,
    on the same axis, are the schedule played with the median time that was measured of each kind of action on each
    stage, and with messages that cost nothing: what is grey there is the bubble of the schedule itself. What the upper
    part waits longer is messages, ranks that wait for a core, and actions that took longer than their like. Ranks that
    share their place in the pipeline show one of them.
    """

    title: ClassVar[str] = "What every rank of the pipeline computed when, measured and simulated"
    section: ClassVar[Section] = "pipeline"

    def select(self, reading: Reading) -> list[Step] | None:
        seen = [history for history in reading.histories if history.pooled and TIMELINE.name in history.pooled.passes]
        if not seen:
            return None
        rows = {case.row.case: case.row for case in reading.trained}
        name = names(rows.values())
        steps = [
            step
            for history in seen
            if history.case.id in rows and (step := _step(history, name(rows[history.case.id])))
        ]
        return sorted(steps, key=lambda step: -len(step.lines)) or None

    def draw(self, data: list[Step]) -> list[Panel]:
        return [
            spans(_title(step), step.lines, step.spans, KINDS, step.case, pale=[WAITING]) for step in data[:MOST_CASES]
        ]

    def answer(self, data: list[Step]) -> str:
        played = [step for step in data if step.simulated is not None]
        if not played:
            return ""
        step = max(played, key=lambda step: step.idle - (step.simulated or 0.0))
        sentence = f"{legible(step.name)}: ranks idle {_shares(step)}"
        if step.longer_s <= 0:
            return f"{sentence}."
        of = scale("s", [step.longer_s])
        longer = f"{of.text(step.longer_s, 3)} {of.unit}"
        return f"{sentence}; the difference is largest on the rank with {step.where}, which waits {longer} longer."

    def left_out(self, data: list[Step]) -> str:
        return curves_note(len(data), MOST_CASES, "timelines, the longest pipelines", IN_OBSERVATIONS)


def _shares(step: Step) -> str:
    simulated = "" if step.simulated is None else f", simulated {100 * step.simulated:.0f} %"
    return f"{100 * step.idle:.0f} % of the step{simulated}"


def _title(step: Step) -> str:
    return f"{legible(step.name)}\nidle {_shares(step)}"


def _step(history: History, name: str) -> Step | None:
    if history.pooled is None:
        return None
    pipeline = pipeline_step(history.case, history.pooled)
    if pipeline is None:
        return None
    whole_s, measured, played = pipeline.whole_s, pipeline.measured, pipeline.played
    places = sorted(measured)
    names = [listed("stage", place) for place in places]
    drawn = [*_spans([measured[place] for place in places[:MOST_RANKS]], whole_s)]
    step = Step(
        history.case.id,
        name,
        tuple(names[:MOST_RANKS]),
        tuple(drawn),
        fmean(_idle_s(timeline, whole_s) / whole_s for timeline in pipeline.timelines),
    )
    if played is None:
        return step
    played_s = max(action.end_s for timeline in played.values() for action in timeline)
    longer_s = [_idle_s(measured[place], whole_s) - _idle_s(played[place], played_s) for place in places]
    below = _spans([played[place] for place in places[:MOST_RANKS]], played_s, first_line=len(step.lines) + 1)
    return Step(
        step.case,
        step.name,
        (*step.lines, "", *(f"{name}, simulated" for name in step.lines)),
        (*step.spans, *below),
        step.idle,
        fmean(_idle_s(timeline, played_s) / played_s for timeline in played.values()),
        names[longer_s.index(max(longer_s))],
        max(longer_s),
    )


def _idle_s(timeline: Sequence[Computed], whole_s: float) -> float:
    return whole_s - sum(action.end_s - action.start_s for action in timeline)


def _spans(timelines: Sequence[Sequence[Computed]], whole_s: float, first_line: int = 0) -> Iterator[Span]:
    """What ran on each line, and the waiting before, between and after it."""
    for line, timeline in enumerate(timelines, first_line):
        before_s = 0.0
        for action in sorted(timeline, key=lambda action: action.start_s):
            yield from _waiting(line, before_s, action.start_s, whole_s)
            yield Span(line, action.start_s, action.end_s, action.kind)
            before_s = action.end_s
        yield from _waiting(line, before_s, whole_s, whole_s)


def _waiting(line: int, start_s: float, end_s: float, whole_s: float) -> Iterator[Span]:
    if end_s - start_s > SHORTEST_WAIT * whole_s:
        yield Span(line, start_s, end_s, WAITING)
