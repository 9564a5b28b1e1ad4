"""One step of a pipeline as its ranks saw it, and the same schedule played with the times that were seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clusterbench.drawing.chrome_trace import Process, Ran, Thread
from clusterbench.formulas.schedules import objection, order
from clusterbench.formulas.schedules.timeline import play
from clusterbench.formulas.statistics import median
from clusterbench.job.passes import TIMELINE, Computed
from clusterbench.job.spans import PIPELINE, action_name
from clusterbench.run_folder.attempts import LONGEST_S
from clusterbench.types import Case, Observation
from clusterbench.words import listed

MOST_MICROBATCHES = 4096
"""More are not played: the orders of a schedule are built one by one."""

Place = tuple[int, ...]
"""The stages of one rank of the pipeline."""


@dataclass(frozen=True)
class PipelineStep:
    """What one rank of each place computed when, and below it the schedule as it is played.

    Attributes
    ----------
    timelines
        Of every rank that left a plausible one; ``measured`` has the first of each place.
    whole_s
        When the last of them ended.
    played
        With the median time of each kind of action on each stage, messages free; None where the ranks did not compute
        what the schedule says, or less of it was recorded.
    """

    timelines: Sequence[Sequence[Computed]]
    measured: Mapping[Place, Sequence[Computed]]
    whole_s: float
    played: Mapping[Place, Sequence[Computed]] | None


def pipeline_step(case: Case, observation: Observation) -> PipelineStep | None:
    """Of a case whose ranks recorded a timeline; None where none is plausible."""
    timelines = [timeline for timeline in TIMELINE.readable(observation) if timeline and _is_plausible(timeline)]
    # One rank for each set of stages: the others of its place compute the same.
    measured = {_place(timeline): timeline for timeline in reversed(timelines)}
    whole_s = max((action.end_s for timeline in timelines for action in timeline), default=0.0)
    if not whole_s:
        return None
    return PipelineStep(timelines, measured, whole_s, _played(str(case.point.get("schedule")), timelines, measured))


def _is_plausible(timeline: Sequence[Computed]) -> bool:
    """Whether each action is of a known kind and ends after it began."""
    return all(
        action.kind in ("F", "B", "I", "W") and 0 <= action.start_s <= action.end_s <= LONGEST_S for action in timeline
    )


def _place(timeline: Iterable[Computed]) -> Place:
    return tuple(sorted({action.stage for action in timeline}))


def _played(
    schedule: str, timelines: Iterable[Sequence[Computed]], measured: Mapping[Place, Sequence[Computed]]
) -> dict[Place, list[Computed]] | None:
    num_stages = len({stage for place in measured for stage in place})
    num_microbatches = sum(
        (action.kind, action.stage) == ("F", 0) for timeline in measured.values() for action in timeline
    )
    chunks, rest = divmod(num_stages, len(measured))
    if rest or not 0 < num_microbatches <= MOST_MICROBATCHES:
        return None
    try:
        if objection(schedule, len(measured), num_microbatches, chunks):
            return None
        planned = order(schedule, len(measured), num_microbatches, chunks)
    except (LookupError, ValueError):
        return None
    computed = {
        place: Counter((action.kind, action.stage) for action in actions) for place, actions in measured.items()
    }
    if computed != {
        tuple(sorted({action.stage for action in actions})): Counter((action.kind, action.stage) for action in actions)
        for actions in planned
    }:
        return None
    times: dict[str, list[list[float]]] = {}
    for timeline in timelines:
        for action in timeline:
            of_kind = times.setdefault(action.kind, [[] for _ in range(num_stages)])
            of_kind[action.stage].append(action.end_s - action.start_s)
    costs = {kind: [median(some) if some else 0.0 for some in of_stage] for kind, of_stage in times.items()}
    ranks = ([Computed(*each.action, each.start_s, each.end_s) for each in rank] for rank in play(planned, costs).ranks)
    return {_place(timeline): timeline for timeline in ranks}


def of_stages(name: str, actions: Mapping[Place, Sequence[Computed]], label: str) -> Process:
    """The process of a trace with a thread for each rank of a pipeline."""
    threads = [
        Thread(listed("stage", place), PIPELINE, [*map(_ran, sorted(actions[place], key=lambda each: each.start_s))])
        for place in sorted(actions)
    ]
    return Process(name, threads, label)


def _ran(action: Computed) -> Ran:
    start_ns = round(action.start_s * 1e9)
    name = action_name(action.kind, action.stage, action.microbatch)
    return Ran(name, start_ns, round(action.end_s * 1e9) - start_ns)
