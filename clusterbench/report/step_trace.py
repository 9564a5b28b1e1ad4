"""The traced step of a case, and the step of its pipeline, as a Chrome trace made of what the run's folder keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.cases.pipelines import of_stages, pipeline_step
from clusterbench.derive.histories import histories_of
from clusterbench.drawing.chrome_trace import ChromeTrace, Process, Ran, Thread
from clusterbench.errors import RunFolderError, SuiteError, nearest
from clusterbench.job.passes import TIMELINE, TRACE, TracedStep
from clusterbench.job.spans import SPANS, Track, kind_of
from clusterbench.run_folder import TRACES, RunFolder
from clusterbench.run_folder.attempts import LONGEST_S, History, host_of
from clusterbench.types import Observation
from clusterbench.units import format_value
from clusterbench.words import few

_LISTED = 8


def step_trace(run: RunFolder, asked: str | None = None) -> ChromeTrace:
    """What ran when in one case of a run: every rank that kept it, then the pipeline, where there is one.

    Parameters
    ----------
    asked
        A case by its id; without it the only one that left something to show.

    Raises
    ------
    SuiteError
        If there is no such case, it left nothing to show, or several did and none is named.
    RunFolderError
        If what it left cannot be read.
    """
    plan = run.plan()
    histories = {history.case.id: history for history in histories_of(plan, run.outcomes(), run.observations(), [])}
    traces = {(seen.hash, seen.repeat, seen.attempt): seen for seen in run.traces()}
    kept = {
        case: traces.get((seen.hash, seen.repeat, seen.attempt))
        for case, history in histories.items()
        if (seen := _with_passes(history)) is not None
    }
    shown = [case for case in kept if kept[case] is not None or _has_timeline(histories[case])]
    case = _chosen(run, asked, [*histories], shown)
    seen = _with_passes(histories[case])
    assert seen is not None
    ranks = [*_ranks(run, seen, kept[case])]
    processes = [*ranks, *_pipeline(histories[case], seen)]
    if not processes:
        raise RunFolderError(f"{run.path}: what {case} left of a step cannot be read as one.")
    of_ranks = f"{len(ranks)} of {len(seen.seconds)} ranks"
    return ChromeTrace(processes, {"run": run.name, "suite": plan.suite, "case": case, "of": of_ranks})


def _with_passes(history: History) -> Observation | None:
    """The record of the repeat whose steps were watched."""
    watched = (seen for seen in history.observations if TRACE.name in seen.passes or TIMELINE.name in seen.passes)
    return next(reversed([*watched]), None)


def _has_timeline(history: History) -> bool:
    seen = _with_passes(history)
    return seen is not None and any(TIMELINE.readable(seen))


def _chosen(run: RunFolder, asked: str | None, cases: Sequence[str], shown: Sequence[str]) -> str:
    if asked is not None and asked not in cases:
        raise SuiteError(f"{run.path} has no case '{asked}'.{nearest(asked, cases)}\nIts traced steps: {_few(shown)}.")
    if not shown or (asked is not None and asked not in shown):
        unread = "".join(f"\nhint: {problem}" for problem in run.problems if problem.startswith(TRACES))
        of = f"case '{asked}' of {run.path}" if asked is not None else str(run.path)
        raise SuiteError(
            f"{of} keeps no traced step: each case of train_step that ends well leaves one, in {TRACES}; "
            f"runs recorded before there were any have none.{unread}"
        )
    if asked is None and len(shown) > 1:
        raise SuiteError(f"{run.path} keeps {len(shown)} traced steps; name one with --case.\nThey are: {_few(shown)}.")
    return asked or shown[0]


def _few(cases: Sequence[str]) -> str:
    return few(cases, _LISTED) if cases else "none"


def _ranks(run: RunFolder, seen: Observation, kept: Observation | None) -> Iterator[Process]:
    """A process for each rank that kept its spans."""
    if kept is None:
        return
    try:
        of_ranks = SPANS.of(kept)
        if len(of_ranks) != len(seen.seconds):
            raise ValueError(f"it is of {len(of_ranks)} ranks, and the case ran on {len(seen.seconds)}")
        for rank, tracks in enumerate(of_ranks):
            if tracks:
                figures = TRACE.readable(seen)
                label = _figures(figures[rank]) if figures else ""
                yield Process(f"rank {rank} ({host_of(seen, rank):.60})", [*map(_thread, tracks)], label)
    except ValueError as error:
        raise RunFolderError(f"{run.path / TRACES}: the line of {kept.case} is damaged: {error}") from None


def _figures(step: TracedStep) -> str:
    parts = (
        (step.step_s, "with tracing"),
        (step.compute_s, "computing"),
        (step.communication_s, "communicating"),
        (step.exposed_s, "exposed"),
    )
    return ", ".join(f"{format_value(seconds, 's')} {words}" for seconds, words in parts)


def _thread(track: Track) -> Thread:
    ran, at_ns = [], 0
    for span in track.spans:
        start_ns, end_ns = at_ns + span.gap_ns, at_ns + span.gap_ns + span.length_ns
        is_sound = min(span) >= 0 and span.name < len(track.names) and span.idle_ns <= span.length_ns
        if not is_sound or end_ns > LONGEST_S * 1e9:
            raise ValueError(f"a span of the track {track.name!r:.60} is {list(span)}")
        name, details = track.names[span.name], None
        if span.more:
            name += f" + {span.more} more"
            details = {"spans": span.more + 1, "busy_us": (span.length_ns - span.idle_ns) / 1000}
        ran.append(Ran(name, start_ns, span.length_ns, details))
        at_ns = end_ns
    return Thread(track.name, kind_of(track.name), ran)


def _pipeline(history: History, seen: Observation) -> Iterator[Process]:
    """The step in which each action was timed, which is another than the traced one, and the schedule as played."""
    step = pipeline_step(history.case, seen)
    if step is None:
        return
    schedule = str(history.case.point.get("schedule"))
    yield of_stages("pipeline, a step of its own", step.measured, f"{schedule}, measured")
    if step.played is not None:
        yield of_stages("pipeline, simulated", step.played, f"{schedule}, median times, messages free")
