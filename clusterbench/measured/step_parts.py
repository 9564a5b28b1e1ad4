"""The seconds of each part of a training step, from what its ranks recorded of one traced step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.formulas.attribution import (
    IMBALANCE,
    Carried,
    Line,
    Part,
    RankStep,
    attribute,
    mean_share,
    waited_for,
)
from clusterbench.formulas.statistics import Summary
from clusterbench.job.passes import TracedStep
from clusterbench.layout import GROUPS, ParallelLayout
from clusterbench.run_folder.attempts import LONGEST_S, host_of
from clusterbench.types import Case, Metric, Observation
from clusterbench.units import format_value


def step_parts(
    case: Case, layout: ParallelLayout, observation: Observation, traced: Sequence[TracedStep], time: Summary
) -> Iterator[Metric]:
    """Seconds of the step time by part; nothing where the run recorded no transfers.

    The mean rank's, with the least and the most of any rank; the parts sum to the step time. Tracing makes a CPU's step
    longer in all of its parts. On a GPU it makes the host slower and not the kernels, so that a step which waits for
    the host is longer by that alone: it is taken from the rest, and the others keep their seconds.

    Raises
    ------
    ValueError
        If a record cannot be that of a step.
    """
    if not traced or any(step.transfers is None for step in traced):
        return
    place_of = _places(layout, case.rank_order)
    longest_s = max(_seconds(step.step_s) for step in traced)
    of_host_s = max(0.0, longest_s - time.value) if case.device == "cuda" else 0.0
    ranks = [_rank_step(step, place_of[rank], of_host_s) for rank, step in enumerate(traced)]
    host = "; what that is longer by is the host's, and taken from the rest" if of_host_s else ""
    basis = (
        f"its share of one traced step, which took {format_value(longest_s, 's')} with tracing, of the measured step "
        f"time{host}; mean rank"
    )
    for part, (share, low, high) in mean_share(attribute(ranks)).items():
        metric = Metric("step_part", "s", share * time.value, low * time.value, high * time.value, 1, detail_of(part))
        yield metric._replace(basis=f"{basis}{_late(ranks, observation)}" if part[0] == IMBALANCE else basis)


def _late(ranks: Sequence[RankStep], observation: Observation) -> str:
    """The rank that the others waited for longest."""
    seconds = waited_for(ranks)
    if not sum(seconds):
        return ""
    last = max(range(len(seconds)), key=seconds.__getitem__)
    share = f"{100 * seconds[last] / sum(seconds):.0f} %"
    return (
        f"; of the waiting for ranks with the same work {share} was for rank {last} ({host_of(observation, last):.60})"
    )


def detail_of(part: Part) -> dict[str, str]:
    name, axis = part
    return {"part": name, "axis": axis} if axis else {"part": name}


def _places(layout: ParallelLayout, rank_order: str) -> dict[int, int]:
    """Place in the pipeline of each rank."""
    return {rank: place for group in layout.groups("pp", rank_order) for place, rank in enumerate(group)}


def _rank_step(traced: TracedStep, place: int, of_host_s: float) -> RankStep:
    """A step as a rank saw it, shorter by the host's seconds as far as it neither computes nor communicates."""
    transfers: dict[Line, list[Carried]] = {}
    for line in traced.transfers or ():
        if line.axis not in GROUPS:
            raise ValueError(f"the trace holds transfers along {line.axis!r:.60}, which is no axis")
        pairs = zip(map(_seconds, line.exposed_s), map(_seconds, line.duration_s), strict=True)
        transfers[Line(line.axis, line.first, line.way)] = [Carried(*pair) for pair in pairs]
    step_s, compute_s = _seconds(traced.step_s), _seconds(traced.compute_s)
    busy_s = compute_s + sum(each.exposed_s for carried in transfers.values() for each in carried)
    return RankStep(place, max(step_s - of_host_s, min(step_s, busy_s)), compute_s, transfers)


def _seconds(value: float) -> float:
    if not 0 <= value <= LONGEST_S:
        raise ValueError(f"the trace holds {value!r:.20} where seconds were to be")
    return float(value)
