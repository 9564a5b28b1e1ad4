import pytest

from clusterbench.engine.transfers import axes_of, carried_by


def test_operators_have_the_axes_that_were_listed_in_their_order():
    names = ["_c10d_functional::all_reduce", "c10d::allreduce_", "c10d::_allgather_base_"]
    listed = [("all_reduce", "tp"), ("all_gather", "dp"), ("all_reduce", "dp")]
    assert axes_of(names, listed) == ["tp", "dp", "dp"]


def test_an_operator_that_was_listed_more_often_than_it_is_there_has_no_axis():
    assert axes_of(["c10d::allreduce_", "c10d::barrier"], [("all_reduce", "tp")] * 2 + [("barrier", "dp")]) == [
        "?",
        "dp",
    ]


def test_a_transfer_is_of_the_call_before_it():
    calls = [(0.0, "tp"), (2.0, "dp"), (4.0, "tp")]
    assert carried_by(calls, [(0.1, 1), (2.1, 3), (4.1, 2)]) == [0, 1, 2]


def test_calls_of_one_axis_are_carried_in_order():
    assert carried_by([(0.0, "dp"), (0.1, "dp"), (0.2, "dp")], [(0.3, 1), (0.4, 2), (0.5, 1)]) == [0, 1, 2]


def test_a_thread_that_was_seen_with_one_axis_more_often_belongs_to_it():
    # at 3.2 thread 5 takes up the dp call, which had to wait for it, while a tp call is newer: thread 5 is dp's
    calls = [(0.0, "dp"), (1.0, "dp"), (3.0, "dp"), (3.1, "tp")]
    assert carried_by(calls, [(0.1, 5), (1.1, 5), (3.2, 5), (3.3, 6)]) == [0, 1, 2, 3]


@pytest.mark.parametrize("calls", [[], [(1.0, "dp")]])
def test_a_transfer_before_any_call_is_of_none(calls):
    assert carried_by(calls, [(0.5, 1)]) == [None]
