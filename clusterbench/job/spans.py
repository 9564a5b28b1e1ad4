"""What ran when in a traced step, by name, as small as a run's folder can keep it for every case. No torch.

A rank's step is a few *tracks*, each a row of what ran one after the other. Of a step with more spans than are kept
those with the smallest gap between them become one, which says how many it is of and how long it idles within: what
is busy on a track stays the same to the nanosecond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from clusterbench.run_folder.passes import SPANS_NAME, Pass

MOST_RANKS, MOST_SPANS = 8, 8192
"""Ranks of a case whose spans are kept, and spans of all of them together: about 25 bytes each."""

COMPUTE, PIPELINE = "compute", "pipeline"
"""Tracks that are of no axis."""


def exposed_along(axis: str) -> str:
    """The track of what an axis carries while nothing is computed, each moment on that of one axis only."""
    return f"exposed communication {axis}"


def transfers_along(axis: str) -> str:
    """The track of what an axis carries beside whatever else runs."""
    return f"communication {axis}"


def calls_along(axis: str) -> str:
    """The track of the thread that runs the step, while it is in the library: it calls, or it waits."""
    return f"communication {axis}, called and waited for"


def kind_of(track: str) -> str:
    """What a track is of: compute, exposed, communication or pipeline.

    >>> kind_of(exposed_along("tp")), kind_of(calls_along("tp")), kind_of(COMPUTE)
    ('exposed', 'communication', 'compute')
    """
    return track.split(" ")[0]


def action_name(kind: str, stage: int, microbatch: int) -> str:
    """How an action of a pipeline is named.

    >>> action_name("F", stage=0, microbatch=3)
    'F3 of stage 0'
    """
    return f"{kind}{microbatch} of stage {stage}"


class Shown(NamedTuple):
    """Something with a name on a track, in seconds from the start of the step; what is on one track may overlap."""

    track: str
    name: str
    start_s: float
    end_s: float


class Span(NamedTuple):
    """What ran on a track, in the form of a file.

    Attributes
    ----------
    name
        Its place among the names of the track. Of several that became one that of the longest.
    gap_ns
        Since the end of what is before it on the track, or the start of the step.
    idle_ns, more
        Of several: how long nothing ran within, and how many there are beside the first.
    """

    name: int
    gap_ns: int
    length_ns: int
    idle_ns: int = 0
    more: int = 0


@dataclass(frozen=True)
class Track:
    """One row of spans, which do not overlap. Of what overlaps the later is on a track of the same name."""

    name: str
    names: Sequence[str]
    spans: Sequence[Span]


SPANS: Pass[Sequence[Track]] = Pass(SPANS_NAME, Sequence[Track])
"""Of the step of :data:`clusterbench.job.passes.TRACE`; no track of a rank whose spans are not kept."""


def most_spans(rank: int, world_size: int) -> int:
    """How many spans of a rank are kept; 0 of most where there are more than :data:`MOST_RANKS`.

    Parameters
    ----------
    world_size
        Of all ranks of the case. Those that keep spans are as far apart as they can be.

    Examples
    --------
    >>> most_spans(0, 4), [rank for rank in range(32) if most_spans(rank, 32)]
    (2048, [0, 4, 8, 12, 16, 20, 24, 28])
    """
    kept = min(world_size, MOST_RANKS)
    is_kept = rank in {place * world_size // kept for place in range(kept)}
    return MOST_SPANS // kept if is_kept else 0


def tracks_of(shown: Iterable[Shown], most: int) -> list[Track]:
    """The tracks of a rank with ``most`` spans together, or one a track.

    >>> tracks_of([Shown("compute", "aten::mm", 1e-6, 3e-6), Shown("compute", "aten::add", 4e-6, 5e-6)], most=1)
    [Track(name='compute', names=['aten::mm'], spans=[Span(name=0, gap_ns=1000, length_ns=4000, idle_ns=1000, more=1)])]
    """
    by_track: dict[str, list[Shown]] = defaultdict(list)
    for each in shown:
        by_track[each.track].append(each)
    lanes = [(name, lane) for name in sorted(by_track, key=_place) for lane in _lanes(by_track[name])]
    gaps = sorted(
        (name == PIPELINE, later.start_ns - before.end_ns, number, place)  # its actions are few, and each has a name
        for number, (name, lane) in enumerate(lanes)
        for place, (before, later) in enumerate(pairwise(lane), 1)
    )
    too_many = max(0, sum(len(lane) for _, lane in lanes) - most)
    closed: dict[int, set[int]] = defaultdict(set)
    for _, _, number, place in gaps[:too_many]:
        closed[number].add(place)
    return [_track(name, _joined(lane, closed[number])) for number, (name, lane) in enumerate(lanes)]


def _place(track: str) -> tuple[int, str]:
    """Of a track among those of its rank."""
    first = (PIPELINE, COMPUTE)
    return (first.index(track) if track in first else len(first), track)


class _Ran(NamedTuple):
    start_ns: int
    end_ns: int
    name: str


def _lanes(shown: Iterable[Shown]) -> list[list[_Ran]]:
    """As few rows as have no overlap, each in order."""
    lanes: list[list[_Ran]] = []
    for ran in sorted(_Ran(round(start_s * 1e9), round(end_s * 1e9), name) for _, name, start_s, end_s in shown):
        free = next((lane for lane in lanes if lane[-1].end_ns <= ran.start_ns), None)
        if free is None:
            lanes.append([ran])
        else:
            free.append(ran)
    return lanes


def _joined(lane: Sequence[_Ran], closed: set[int]) -> Iterator[list[_Ran]]:
    """Neighbours together whose gap is closed; ``closed`` has the place of the later one."""
    together: list[_Ran] = []
    for place, ran in enumerate(lane):
        if together and place not in closed:
            yield together
            together = []
        together.append(ran)
    yield together


def _track(name: str, lane: Iterable[Sequence[_Ran]]) -> Track:
    names: dict[str, int] = {}
    spans, before_ns = [], 0
    for together in lane:
        longest = max(together, key=lambda ran: ran.end_ns - ran.start_ns)
        start_ns, end_ns = together[0].start_ns, together[-1].end_ns
        busy_ns = sum(ran.end_ns - ran.start_ns for ran in together)
        spans.append(
            Span(
                names.setdefault(longest.name, len(names)),
                start_ns - before_ns,
                end_ns - start_ns,
                end_ns - start_ns - busy_ns,
                len(together) - 1,
            )
        )
        before_ns = end_ns
    return Track(name, list(names), spans)
