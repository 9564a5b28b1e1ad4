"""Overlap on intervals small enough to draw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbench.formulas.intervals import (
    common_length,
    exposed_communication,
    merged,
    overlap_fraction,
    union_length,
)

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))), max_size=8
)


def covered(spans):
    return {second for start, end in spans for second in range(start, end)}


@given(intervals, intervals)
def test_lengths_are_those_of_sets_of_seconds(communication, compute):
    assert union_length(communication) == len(covered(communication))
    assert common_length(communication, compute) == len(covered(communication) & covered(compute))
    assert exposed_communication(communication, compute) == len(covered(communication) - covered(compute))


def test_hidden_communication_is_not_exposed():
    assert exposed_communication([(1.0, 2.0)], [(0.0, 3.0)]) == 0
    assert overlap_fraction([(1.0, 2.0)], [(0.0, 3.0)]) == 1


def test_communication_without_compute_is_all_exposed():
    assert exposed_communication([(1.0, 2.0)], []) == 1
    assert overlap_fraction([(1.0, 2.0)], []) == 0


def test_two_streams_at_once_count_once():
    assert exposed_communication([(0.0, 2.0), (0.0, 2.0)], []) == 2


def test_no_communication_has_no_overlap_fraction():
    assert exposed_communication([], [(0.0, 1.0)]) == 0
    assert overlap_fraction([], [(0.0, 1.0)]) is None


def test_touching_intervals_merge():
    assert merged([(1.0, 2.0), (0.0, 1.0)]) == [(0.0, 2.0)]


def test_an_interval_that_ends_before_it_starts_is_refused():
    with pytest.raises(ValueError, match=r"ends at 1\.0 s, before it starts at 2\.0 s"):
        merged([(2.0, 1.0)])
