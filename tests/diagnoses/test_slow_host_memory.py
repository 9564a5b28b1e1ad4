from __future__ import annotations

import pytest

from clusterbench.diagnoses.slow_host_memory import SlowHostMemory
from tests.report.synthetic import case, observation, outcome, reading

HOSTS = ("n1", "n2", "n3", "n4")
NEAR, FAR = (0.010, 0.011, 0.010), (0.014, 0.015, 0.014)
"""A host's two places: the second is farther from its memory, on every host alike."""
USUAL = (NEAR, FAR)
HALF = tuple(2 * second for second in NEAR), tuple(2 * second for second in FAR)


def answer(*of_hosts, benchmark="host_copy", hosts=HOSTS):
    """What is said of a case with these seconds of the ranks of each host."""
    seconds = [rank for ranks in of_hosts for rank in ranks]
    of = case("copy", len(seconds), num_nodes=len(hosts), benchmark=benchmark, device="cuda")
    return SlowHostMemory().answer(reading((outcome(of), observation(of, seconds, hosts=hosts)), cases=[of]))


@pytest.mark.parametrize("benchmark", ["host_copy", "cpu_memory"])
def test_a_host_that_is_half_as_fast_is_named(benchmark):
    (found,) = answer(USUAL, USUAL, HALF, USUAL, benchmark=benchmark).findings
    assert (found.where, found.host, found.severity) == ("n3", "n3", "warning")
    assert found.what == f"takes 2.0 times as long in {benchmark} as the ranks of the same places on the other hosts"
    assert (
        found.evidence
        == "planted/1n8/copy: 20.000 ms in the median, and 10.000 ms on the median host; at best 20.000 ms"
    )


def test_one_rank_that_is_half_as_fast_as_those_of_its_place_is_named():
    """A GPU on half of its lanes that no driver tells of."""
    (found,) = answer(USUAL, (NEAR, HALF[1]), USUAL, USUAL).findings
    assert (found.where, found.host) == ("rank 3 on n2", "n2")
    assert "as the ranks of the same place on the other hosts" in found.what


def test_places_that_differ_alike_on_all_hosts_are_in_order():
    said = answer(*[(NEAR, HALF[1])] * 4)
    assert said.findings == ()
    assert said.healthy == ("host_copy on 4 hosts: no rank takes 1.33 times as long as those of its place on others",)


def test_a_quarter_longer_and_a_host_that_was_in_time_once_are_not_named():
    longer = tuple(1.25 * second for second in NEAR), FAR
    assert answer(USUAL, USUAL, longer, USUAL).findings == ()
    assert answer(USUAL, USUAL, ((0.02, 0.0105, 0.02), FAR), USUAL).findings == ()


def test_two_hosts_and_ranks_that_copy_alone_are_not_compared():
    """Of two nobody knows which is as it should be."""
    assert answer(USUAL, HALF, hosts=("n1", "n2")).state == "nothing to judge"
    assert answer((NEAR,), hosts=("n1",)).state == "nothing to judge"
    assert answer(USUAL, USUAL, HALF, USUAL, benchmark="matmul").state == "nothing to judge"
