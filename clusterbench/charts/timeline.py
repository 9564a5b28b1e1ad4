from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.names import names
from clusterbench.charts import IN_OBSERVATIONS, Chart, Section, curves_note
from clusterbench.drawing.spans import Span, spans
from clusterbench.formulas.schedules import objection, order
from clusterbench.formulas.schedules.timeline import play
from clusterbench.formulas.statistics import median
from clusterbench.job.passes import TIMELINE, Computed
from clusterbench.run_folder.attempts import LONGEST_S, History
from clusterbench.units import scale
from clusterbench.words import legible, listed

if TYPE_CHECKING:
    from clusterbench.drawing.panel import Panel

MOST_CASES, MOST_RANKS = 8, 16
WAITING = ""
KINDS = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights", WAITING: "waiting"}

SHORTEST_WAIT = 0.01
"""As a share of the step: a shorter gap is the loop around the actions."""

MOST_MICROBATCHES = 4096
"""More are not played: the orders of a schedule are built one by one."""

Place = tuple[int, ...]
"""The stages of one rank of the pipeline."""

Actions = Sequence[tuple[str, int, float, float]]
"""What one rank computed: kind, stage, and seconds of its start and end."""


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
    timelines = [
        [(kind, stage, start_s, end_s) for kind, stage, _, start_s, end_s in timeline]
        for timeline in TIMELINE.readable(history.pooled)
        if timeline and _is_plausible(timeline)
    ]
    # One rank for each set of stages: the others of its place compute the same.
    measured = {_place(timeline): timeline for timeline in reversed(timelines)}
    whole_s = max((end_s for timeline in timelines for *_, end_s in timeline), default=0.0)
    if not whole_s:
        return None
    schedule, places = str(history.case.point.get("schedule")), sorted(measured)
    played = _played(schedule, timelines, measured)
    names = [listed("stage", place) for place in places]
    drawn = [*_spans([measured[place] for place in places[:MOST_RANKS]], whole_s)]
    step = Step(
        history.case.id,
        name,
        tuple(names[:MOST_RANKS]),
        tuple(drawn),
        fmean(_idle_s(timeline, whole_s) / whole_s for timeline in timelines),
    )
    if played is None:
        return step
    played_s = max(end_s for timeline in played.values() for *_, end_s in timeline)
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


def _is_plausible(timeline: Sequence[Computed]) -> bool:
    """Whether each action is of a known kind and ends after it began."""
    return all(
        action.kind in ("F", "B", "I", "W") and 0 <= action.start_s <= action.end_s <= LONGEST_S for action in timeline
    )


def _place(timeline: Actions) -> Place:
    return tuple(sorted({stage for _, stage, _, _ in timeline}))


def _idle_s(timeline: Actions, whole_s: float) -> float:
    return whole_s - sum(end_s - start_s for *_, start_s, end_s in timeline)


def _played(
    schedule: str, timelines: Iterable[Actions], measured: Mapping[Place, Actions]
) -> dict[Place, Actions] | None:
    """The schedule with the median time of each kind of action on each stage, messages free, by place.

    None where the ranks did not compute what the schedule says, or less of it was recorded.
    """
    num_stages = len({stage for place in measured for stage in place})
    forwards = Counter(stage for timeline in measured.values() for kind, stage, _, _ in timeline if kind == "F")
    num_microbatches = forwards[0]
    chunks, rest = divmod(num_stages, len(measured))
    if rest or not 0 < num_microbatches <= MOST_MICROBATCHES:
        return None
    try:
        if objection(schedule, len(measured), num_microbatches, chunks):
            return None
        planned = order(schedule, len(measured), num_microbatches, chunks)
    except (LookupError, ValueError):
        return None
    computed = {place: Counter((kind, stage) for kind, stage, _, _ in actions) for place, actions in measured.items()}
    if computed != {
        tuple(sorted({action.stage for action in actions})): Counter((action.kind, action.stage) for action in actions)
        for actions in planned
    }:
        return None
    times: dict[str, list[list[float]]] = {}
    for timeline in timelines:
        for kind, stage, start_s, end_s in timeline:
            times.setdefault(kind, [[] for _ in range(num_stages)])[stage].append(end_s - start_s)
    costs = {kind: [median(some) if some else 0.0 for some in of_stage] for kind, of_stage in times.items()}
    ranks = (
        [(*played.action[:2], played.start_s, played.end_s) for played in rank] for rank in play(planned, costs).ranks
    )
    return {_place(timeline): timeline for timeline in ranks}


def _spans(timelines: Sequence[Actions], whole_s: float, first_line: int = 0) -> Iterator[Span]:
    """What ran on each line, and the waiting before, between and after it."""
    for line, timeline in enumerate(timelines, first_line):
        before_s = 0.0
        for kind, _, start_s, end_s in sorted(timeline, key=lambda action: action[2]):
            yield from _waiting(line, before_s, start_s, whole_s)
            yield Span(line, start_s, end_s, kind)
            before_s = end_s
        yield from _waiting(line, before_s, whole_s, whole_s)


def _waiting(line: int, start_s: float, end_s: float, whole_s: float) -> Iterator[Span]:
    if end_s - start_s > SHORTEST_WAIT * whole_s:
        yield Span(line, start_s, end_s, WAITING)
