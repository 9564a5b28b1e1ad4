"""Who is named of ranks and hosts in trouble, without a run."""

from __future__ import annotations

import pytest

from clusterbench.launch.control import STOOD_STILL
from clusterbench.launch.culprit import Heard, Trouble, late, named, standing
from clusterbench.launch.members import Member
from clusterbench.launch.messages import LostAgent, LostStore, RankExited, RankPlace
from tests.launch.test_conductor import case, seen

A, B = Member(0, "a", 0, (0, 1)), Member(1, "b", 2, (0, 1))
BOTH = Heard("a", {"a", "b"}, 2, ())
APART = {0: seen(0, iteration=4), 1: seen(1, phase="prepared"), 2: seen(2, phase="checked", iteration=1)}
"""Rank 1 is behind the others."""


def of_events(*events: LostAgent | LostStore | RankExited) -> Trouble:
    return named(events, APART, (A, B), {}, BOTH)


@pytest.mark.parametrize("first", [-9, 1])
def test_a_rank_that_was_killed_is_named_before_one_that_ended_by_itself(first: int) -> None:
    other = 1 if first < 0 else -9
    trouble = of_events(RankExited(0, "a", first, ""), RankExited(1, "a", other, ""))
    assert trouble.rank == (0 if first < 0 else 1)


def test_what_is_lost_is_told_with_the_phase_of_the_rank_that_is_least_far() -> None:
    assert of_events(LostAgent(1, "b", "closed its connection")).phase == APART[1].phase
    assert of_events(LostStore("a", "the store ended")).phase == APART[1].phase


def test_a_head_that_stood_still_is_named_and_none_of_those_that_left_it() -> None:
    why = f"{STOOD_STILL}31 s, and the other agents took it for lost"
    trouble = of_events(LostAgent(1, "b", why))
    assert (trouble.host, trouble.rank, trouble.blame) == ("a", None, "process")
    assert trouble.reason == f"the agent of the head (host a) {why}"


def test_a_silent_host_is_named_with_the_phase_of_the_rank_that_is_least_far() -> None:
    trouble = late(case(), 9.0, APART, [], [B], 3.0, {})
    assert (trouble.host, trouble.rank, trouble.phase) == ("b", 2, APART[1].phase)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (seen(0, phase="warm", iteration=0), "not finished iteration 1"),
        (seen(0, phase="warm", iteration=-1), "not left the phase after 'warm'"),
        (
            seen(0, phase="spawned", state="T"),
            "not left the phase after 'spawned': its process, or one that starts it, is stopped (SIGSTOP)",
        ),
        (
            seen(0, phase="imported", state="T"),
            "not left the phase after 'imported': its process is stopped (SIGSTOP)",
        ),
    ],
)
def test_where_a_rank_stands_is_said(place: RankPlace, said: str) -> None:
    assert standing(place) == said
