from __future__ import annotations

from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.cluster import Cluster
from clusterbench.diagnoses import Answer, NotJudged, examine
from clusterbench.diagnoses.idle_hosts import IdleHosts
from clusterbench.verdict import verdict
from tests.report.synthetic import case, observation, outcome, reading

NAMES = ("h0", "h1", "h2", "h3", "h4", "h5")


def run(num_nodes: int, used: tuple[str, ...], allocated: tuple[str, ...] = NAMES) -> Reading:
    """A run with one case, on a part of the hosts that there were."""
    of = case("a", num_nodes=num_nodes)
    read = reading((outcome(of), observation(of, hosts=used)), cases=[of])
    return replace(read, plan=replace(read.plan, cluster=Cluster(len(allocated), 4, "cpu", hosts=allocated)))


def test_hosts_that_no_case_used_are_not_judged() -> None:
    """A suite for two nodes ended HEALTHY on six, of which four were idle."""
    read = run(2, ("h0", "h1"))
    idle = NotJudged(
        "4 of 6 hosts: h2, h3, h4, h5",
        "the suite takes 2 nodes, and no case ran there",
        "'all_nodes: true' in the suite",
        ("h2", "h3", "h4", "h5"),
    )
    assert IdleHosts().answer(read) == Answer(not_judged=(idle,))
    said = verdict(read, examine(read)).machine
    assert said.word == "NOT JUDGED"
    assert "4 of 6 hosts: h2, h3, h4, h5 (it takes 'all_nodes: true' in the suite)" in said.sentence


def test_nothing_is_said_where_a_case_took_all_hosts() -> None:
    assert IdleHosts().answer(run(6, NAMES)) == Answer()
    # one that was lost is told of by itself, and a spare that took its place was used
    assert IdleHosts().answer(run(6, NAMES[:5])) == Answer()
    assert IdleHosts().answer(run(2, ("h0", "h2"), ("h0", "h1", "h2"))) == Answer()


def test_nothing_is_said_where_nothing_ran() -> None:
    read = run(2, ("h0", "h1"))
    assert IdleHosts().answer(replace(read, histories=())) == Answer()
