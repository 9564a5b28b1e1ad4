from __future__ import annotations

import pytest

from clusterbench.checks.clock_skew import ClockSkew
from clusterbench.facts import Host


def judged(*offsets):
    """Of hosts n0, n1 ...; the first one measured and has no offset."""
    hosts = [
        Host(f"n{each}", {} if offset is None else {"clock_offset_s": offset}) for each, offset in enumerate(offsets)
    ]
    return ClockSkew().judge_all(hosts)


def test_a_clock_that_is_ahead_is_found_on_its_host_alone():
    said = judged(None, 0.001, 0.3, -0.002)
    (fault,) = said["n2"].faults
    assert fault.what == "the clock is 300 ms ahead of that of most hosts"
    assert fault.evidence == "clock_offset_s: 0.3 against the first host"
    assert [name for name, of_host in said.items() if of_host.faults] == ["n2"]


def test_the_first_host_may_be_the_odd_one():
    said = judged(None, 3.0, 3.001, 3.002)
    assert [name for name, of_host in said.items() if of_host.faults] == ["n0"]
    assert said["n0"].faults[0].what == "the clock is 3.0 s behind that of most hosts"


def test_of_two_both_are_named():
    said = judged(None, -0.06)
    assert said["n0"].faults[0].what == "the clock is 60 ms ahead of that of n1"
    assert said["n1"].faults[0].what == "the clock is 60 ms behind that of n0"


@pytest.mark.parametrize(
    ("offsets", "what"),
    [
        ((None, 0.001, 0.08, 0.081), "no clock is that of most hosts: n2, n3 80 ms ahead of n0, n1"),
        ((None, 10, -10), "no clock is that of most hosts: n0 10.0 s, n1 20.0 s ahead of n2"),
    ],
)
def test_where_no_clock_is_that_of_most_hosts_all_are_named(offsets, what):
    said = judged(*offsets)
    assert [fault.what for of_host in said.values() for fault in of_host.faults] == [what] * len(offsets)


@pytest.mark.parametrize(("offset", "faults"), [(0.05, 0), (0.051, 1), (-0.051, 1)])
def test_at_the_bound(offset, faults):
    assert len(judged(None, 0.0, 0.0, offset)["n3"].faults) == faults


def test_one_host_and_one_that_did_not_answer_are_not_judged():
    assert judged(None)["n0"].unknown[0].why == "the clock was compared with that of no other host"
    said = judged(None, 0.001, None)
    assert said["n2"].unknown
    assert said["n0"].healthy == said["n1"].healthy == "the clock is within 50 ms of the other host's"


def test_an_offset_that_is_none_is_not_judged():
    assert judged(None, "soon", float("nan"))["n1"].unknown
