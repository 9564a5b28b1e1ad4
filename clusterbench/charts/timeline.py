from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clusterbench.charts import Chart
from clusterbench.charts._drawing import Span, spans
from clusterbench.charts._selection import curves_note
from clusterbench.history import LONGEST_S, History, Reading
from clusterbench.rows import Row

if TYPE_CHECKING:
    from clusterbench.charts._panel import Panel

MOST_CASES, MOST_RANKS = 12, 16
KINDS = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}


@dataclass(frozen=True)
class Step:
    """One step of a pipeline as its ranks saw it."""

    case: str
    name: str
    lines: tuple[str, ...]
    spans: tuple[Span, ...]


class Timeline(Chart[list[Step]]):
    """What each rank of a pipeline computed when, in one step.

    How to read it
    --------------
    A line is a rank of the pipeline, the first stage on top; time begins when the rank left a barrier. Boxes are what
    was measured: a gap is a rank that waits for a message or for its turn. What the formula and the schedule played
    without messages make of it stands beside the bubble in the table. Ranks that share their pipeline place show one
    of them.
    """

    title: ClassVar[str] = "What every rank of the pipeline computed when"
    place: ClassVar[int] = 45

    def select(self, rows: Sequence[Row]) -> list[Step] | None:
        return None  # no row holds a timeline

    def select_from(self, reading: Reading) -> list[Step] | None:
        return [step for history in reading.histories if (step := _step(history))] or None

    def draw(self, data: list[Step]) -> list[Panel]:
        return [spans(step.name, step.lines, step.spans, KINDS, step.case) for step in data[:MOST_CASES]]

    def left_out(self, data: list[Step]) -> str:
        return curves_note(len(data), MOST_CASES, "timelines")


def _step(history: History) -> Step | None:
    if history.pooled is None:
        return None
    timelines = [timeline for timeline in history.pooled.passes.get("timeline", ()) if timeline and _is_whole(timeline)]
    # One rank for each set of stages: the others of its place compute the same.
    of_place = {tuple(sorted({action[1] for action in timeline})): timeline for timeline in reversed(timelines)}
    places = sorted(of_place)[:MOST_RANKS]
    if not places:
        return None
    drawn = [
        Span(line, start_s, end_s, kind)
        for line, place in enumerate(places)
        for kind, _, _, start_s, end_s in of_place[place]
    ]
    names = tuple("stage " + ", ".join(map(str, place)) for place in places)
    point = history.case.point
    return Step(history.case.id, f"{point.get('layout')}, {point.get('schedule')}", names, tuple(drawn))


def _is_whole(timeline: Any) -> bool:
    """Whether each action is its kind, its stage, its micro-batch, and plausible seconds of its start and end."""
    return isinstance(timeline, list) and all(
        isinstance(action, list)
        and [*map(type, action)] == [str, int, int, float, float]
        and 0 <= action[3] <= action[4] <= LONGEST_S
        for action in timeline
    )
