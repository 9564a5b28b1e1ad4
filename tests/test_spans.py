"""What ran when, as small as a run's folder keeps it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from clusterbench.job.spans import (
    MOST_RANKS,
    MOST_SPANS,
    PIPELINE,
    Shown,
    Track,
    most_spans,
    tracks_of,
)

MOMENTS = st.integers(0, 300)
SHOWN = st.lists(st.tuples(st.sampled_from(["compute", PIPELINE, "communication tp"]), MOMENTS, MOMENTS), max_size=40)


def busy_ns(tracks: list[Track], name: str) -> int:
    return sum(span.length_ns - span.idle_ns for track in tracks if track.name == name for span in track.spans)


@given(SHOWN, st.integers(1, 50))
def test_what_is_joined_keeps_its_busy_time_and_how_many_it_is_of(drawn: list[tuple[str, int, int]], most: int) -> None:
    shown = [
        Shown(track, f"at {start}", min(start, end) * 1e-9, (max(start, end) + 1) * 1e-9) for track, start, end in drawn
    ]
    tracks = tracks_of(shown, most)
    assert sum(len(track.spans) for track in tracks) <= max(most, len(tracks))
    assert sum(1 + span.more for track in tracks for span in track.spans) == len(shown)
    for name in {each.track for each in shown}:
        own = [(each.start_s, each.end_s) for each in shown if each.track == name]
        assert busy_ns(tracks, name) == round(sum(end - start for start, end in own) * 1e9)
        assert max(sum(sum(span[1:3]) for span in track.spans) for track in tracks if track.name == name) == round(
            max(end for _, end in own) * 1e9
        )
    for track in tracks:
        assert all(min(span) >= 0 and span.name < len(track.names) for span in track.spans)


def test_what_overlaps_is_on_rows_of_its_own_and_as_few_as_can_be() -> None:
    tracks = tracks_of([Shown("communication dp", str(at), at, at + 1.5) for at in range(6)], 100)
    assert [[track.names[span.name] for span in track.spans] for track in tracks] == [["0", "2", "4"], ["1", "3", "5"]]


def test_the_smallest_gaps_are_closed_first_and_the_longest_gives_its_name() -> None:
    moments = {"a": (0, 1), "b": (1.1, 4), "c": (5, 6), "d": (9, 10)}
    shown = [Shown("compute", name, *at) for name, at in moments.items()]
    (track,) = tracks_of(shown, 2)
    assert [(track.names[span.name], span.length_ns, span.idle_ns, span.more) for span in track.spans] == [
        ("b", 6 * 10**9, 11 * 10**8, 2),
        ("d", 10**9, 0, 0),
    ]


def test_actions_of_a_pipeline_are_joined_last() -> None:
    shown = [Shown(PIPELINE, f"F{at}", at, at + 1) for at in range(5)]
    shown += [Shown("compute", "mm", at, at + 0.5) for at in range(5)]
    pipeline, compute = tracks_of(shown, 6)
    assert (len(pipeline.spans), len(compute.spans)) == (5, 1)


def test_tracks_come_with_the_pipeline_first_then_compute_then_each_axis() -> None:
    names = ["exposed communication tp", "communication tp", "compute", PIPELINE]
    assert [track.name for track in tracks_of([Shown(name, "x", 0, 1) for name in names], 9)] == [
        PIPELINE,
        "compute",
        "communication tp",
        "exposed communication tp",
    ]


def test_a_case_of_any_number_of_ranks_keeps_no_more() -> None:
    draw = random.Random(0)
    for world_size in (1, 2, 7, 8, 9, 12, 64, *(draw.randrange(65, 20_000) for _ in range(5))):
        kept = [number for rank in range(world_size) if (number := most_spans(rank, world_size))]
        assert len(kept) == min(world_size, MOST_RANKS)
        assert MOST_SPANS - MOST_RANKS < sum(kept) <= MOST_SPANS
