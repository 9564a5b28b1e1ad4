"""What a run says of each host: every kind of outcome, note and finding is planted, and health, too."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, get_args

import pytest

from clusterbench.benchmarks.link_matrix import LinkMatrix
from clusterbench.cases import Reading
from clusterbench.cluster import Cluster
from clusterbench.derive import read
from clusterbench.diagnoses import examine
from clusterbench.hosts import Host, Hosts, judge_hosts
from clusterbench.measured.disturbed import DISTURBED
from clusterbench.types import SAMPLES, Blame, Case, Observation, Outcome, Place, metric_key
from tests.report.synthetic import case, observation, outcome, reading, row, write_run

NAMES = ("n0", "n1", "n2", "n3")
Record = tuple[Outcome, Observation | None]

MATMUL = case("m", id="matmul/4n4/m", benchmark="matmul", num_nodes=4)
OTHER = case("x", id="other/4n4/x", num_nodes=4)


def matmul(slow: Mapping[int, float] | None = None, of: Case = MATMUL, hosts: Sequence[str] = NAMES) -> Record:
    """A rank on each host, some of them slower."""
    draw = random.Random(1)
    factors = [(slow or {}).get(rank, 1.0) for rank in range(of.world_size)]
    seconds = [[0.01 * factor * draw.gauss(1, 0.01) for _ in range(40)] for factor in factors]
    return outcome(of), observation(of, seconds, hosts=tuple(hosts))


def links(rates: Mapping[tuple[int, int], float] | None = None, hosts: Sequence[str] = NAMES) -> list[Any]:
    """A matrix of pairs, all alike but for those that are named."""
    return [
        row(
            MATMUL,
            "pair_bandwidth",
            value := (rates or {}).get((a, b), 1e9 + 1e6 * a),
            high=1.01 * value,
            unit="B/s",
            detail={"source": hosts[a], "part": hosts[b]},
            hosts=" ".join(hosts),
        )
        for a in range(len(hosts))
        for b in range(len(hosts))
        if a != b
    ]


def judged(
    *records: Record,
    rows: Sequence[Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = NAMES,
    cases: Sequence[Case] = (MATMUL, OTHER),
    ranks_per_node: int = 1,
) -> dict[str, Host]:
    read: Reading = reading(*records, cases=cases, rows=links() if rows is None else rows)
    plan = replace(read.plan, cluster=Cluster(len(hosts), ranks_per_node, "cpu", hosts=tuple(hosts)))
    described = {"hosts": {host: {"cpu_model": "x"} for host in hosts}}
    read = replace(read, plan=plan, environment={**described, **(environment or {})})
    found = judge_hosts(read, examine(read))
    assert isinstance(found, Hosts)
    return {host.name: host for host in found.hosts}


def words(found: Mapping[str, Host]) -> dict[str, str]:
    return {name: host.judged for name, host in found.items()}


def ended(status: Any = "failed", of: Case = OTHER, **changes: Any) -> Record:
    return outcome(of, status, **{"reason": "it broke", **changes}), None


ALL_GOOD = dict.fromkeys(NAMES, "good")
NONE_JUDGED = dict.fromkeys(NAMES, "not judged")


# Health


def test_hosts_are_good_whose_ranks_and_links_were_compared_with_those_of_others() -> None:
    found = judged(matmul())
    assert words(found) == ALL_GOOD
    kinds = [evidence.kind for evidence in found["n2"].evidence]
    assert kinds == ["slow_link", "straggler", "cases"]
    compared, own, cases = (evidence.sentence for evidence in found["n2"].evidence)
    assert compared.startswith("links to other hosts are like their peers in matmul/4n4/m (1.0 GB/s to 1.0 GB/s; one ")
    assert own.startswith("4 ranks in matmul: none of this host is slower than its peers (")
    assert cases == "1 of 1 cases that ended well ran here"
    assert found["n2"].takes == ()


def test_no_host_is_good_of_which_the_links_or_the_ranks_were_not_compared() -> None:
    without_links, without_ranks = judged(matmul(), rows=[]), judged((outcome(OTHER), observation(OTHER, hosts=NAMES)))
    assert words(without_links) == words(without_ranks) == NONE_JUDGED
    assert without_links["n0"].takes == (
        "links (no link was measured by itself; "
        "it takes link_matrix in the suite, or peer_copy for the GPUs of a host)",
    )
    assert without_ranks["n0"].takes == (
        "ranks (no case lets ranks work without waiting for each other; it takes matmul or device_copy in the suite)",
    )


def test_where_figures_are_void_it_takes_the_run_again_without_what_made_them_so() -> None:
    """A hot GPU on one of four hosts voided all links between them: 'it takes a case on all ranks of this host'."""
    void = [row._replace(value=None, basis=f"{DISTURBED} GPU 2 on n3: slowed down for heat") for row in links()]
    found = judged(matmul(), rows=[*inside([f"n0:{gpu}" for gpu in range(4)]), *void])
    assert found["n0"].takes == ("slow link: the run again without what made figures void",)


def test_of_a_case_on_one_host_another_host_is_asked_for_and_no_bisection_which_is_refused() -> None:
    on_one, on_all = case("m", id="matmul/1n1/m", world_size=1), OTHER
    (one, *_), (many, *_) = (
        judged(matmul(), ended("wrong", of, rank=0, host="n0"), cases=[MATMUL, of])["n0"].takes
        for of in (on_one, on_all)
    )
    assert one == "the suite again with another host first (--hosts), to compare what ran on one host"
    assert many == f"--bisect {on_all.id}, which finds the hosts that it needs in order to fail"
    other = case("c", id="device_copy/1n1/c", world_size=1)
    both = [ended("wrong", of, rank=0, host="n0") for of in (on_one, other)]
    assert judged(matmul(), *both, cases=[MATMUL, on_one, other])["n0"].takes == (one,)


def test_ranks_of_one_host_alone_say_nothing_of_hosts_where_there_are_several() -> None:
    on_one = case("m", id="matmul/1n4/m", benchmark="matmul")
    wide = (outcome(OTHER), observation(OTHER, hosts=NAMES))
    found = judged(matmul(of=on_one, hosts=["n0"]), wide, cases=[on_one, OTHER])
    assert words(found) == NONE_JUDGED
    assert found["n0"].takes == found["n3"].takes == ("straggler: a case on all ranks of this host and of others",)


def test_a_host_that_is_alone_is_good_where_its_ranks_and_links_are_alike() -> None:
    on_one = case("m", id="matmul/1n4/m", benchmark="matmul")
    gpus = [f"n0:{number}" for number in range(4)]
    found = judged(matmul(of=on_one, hosts=["n0"]), rows=inside(gpus), cases=[on_one], hosts=["n0"])
    assert words(found) == {"n0": "good"}


def test_a_host_of_which_some_ranks_were_not_compared_is_not_good() -> None:
    assert words(judged(matmul(), ranks_per_node=1)) == ALL_GOOD
    assert words(judged(matmul(), ranks_per_node=2)) == NONE_JUDGED


def inside(gpus: Sequence[str]) -> list[Any]:
    return [replaced._replace(hosts="n0") for replaced in links(hosts=gpus)]


def test_a_host_without_a_case_that_ended_well_is_not_judged() -> None:
    found = judged(matmul(), environment={"hosts": {host: {"cpu_model": "x"} for host in (*NAMES, "idle")}})
    assert words(found) == {**ALL_GOOD, "idle": "not judged"}
    assert found["idle"].takes[-1] == "a case that ends well on this host"


def test_noise_that_would_hide_a_slow_rank_lets_no_host_be_good() -> None:
    draw = random.Random(2)
    seconds = [[0.01 * draw.lognormvariate(0, 0.8) for _ in range(20)] for _ in range(4)]
    found = judged((outcome(MATMUL), observation(MATMUL, seconds, hosts=NAMES)))
    assert words(found) == NONE_JUDGED
    assert "noise" in found["n0"].takes[0]


# Findings about the machine


def test_a_host_whose_rank_alone_is_too_uneven_to_be_judged_is_not_good_for_what_else_it_does_well() -> None:
    """Its GPU loses its clock for the last third of matmul: no straggler by the interval, and it was called good."""
    launch = case("k", id="kernel_launch/4n4/k", benchmark="kernel_launch", num_nodes=4)
    ended, seen = matmul()
    seconds = [list(of_rank) for of_rank in seen.seconds]
    seconds[2][27:] = [1.6 * second for second in seconds[2][27:]]
    found = judged((ended, replace(seen, seconds=seconds)), matmul(of=launch), cases=(MATMUL, launch))
    assert words(found) == ALL_GOOD | {"n2": "not judged"}
    (takes,) = found["n2"].takes
    assert takes == (
        "4 ranks in matmul (40 iterations are too few to tell a slow rank from noise; the most uneven is rank 2 on n2, "
        "and others could be judged; it takes about 179 iterations)"
    )


def test_a_straggler_is_bad_with_its_numbers_and_the_others_are_good() -> None:
    found = judged(matmul({2: 1.5}))
    assert words(found) == {**ALL_GOOD, "n2": "bad"}
    (evidence,) = found["n2"].evidence
    assert evidence.kind == "straggler"
    assert evidence.sentence.startswith("rank 2 on n2, 50 % slower (between 4")


def test_one_that_was_held_against_a_straggler_alone_is_not_good() -> None:
    of = case("m", 2, id="matmul/2n2/m", benchmark="matmul", num_nodes=2)
    found = judged(matmul({1: 1.5}, of, ["n0", "n1"]), cases=[of], rows=links(), hosts=NAMES)
    assert (found["n0"].judged, found["n1"].judged) == ("not judged", "bad")


def test_a_node_with_slow_links_is_bad_and_the_others_are_good() -> None:
    slow = {pair: 0.5e9 for other in (0, 2, 3) for pair in ((1, other), (other, 1))}
    found = judged(matmul(), rows=links(slow))
    assert words(found) == {**ALL_GOOD, "n1": "bad"}
    assert "slow_link" in {evidence.kind for evidence in found["n1"].evidence}
    assert "measured 500.0 MB/s, median 1.0 GB/s" in found["n1"].evidence[0].sentence


def test_of_a_slow_link_it_is_not_known_which_end_it_is() -> None:
    hosts = tuple(f"n{number}" for number in range(6))
    of = case("m", 6, id="matmul/4n4/m", benchmark="matmul", num_nodes=6)
    found = judged(
        matmul(of=of, hosts=hosts), rows=links({(1, 2): 0.4e9, (2, 1): 0.4e9}, hosts), cases=[of], hosts=hosts
    )
    assert words(found) == {**dict.fromkeys(hosts, "good"), "n1": "not judged", "n2": "not judged"}
    # and no 'slow link: a case on all ranks of this host and of others': that was the case that found it
    assert [take.partition(" (")[0] for take in found["n1"].takes] == ["the same cases with the hosts in another order"]


def test_a_gpu_that_is_throttled_makes_its_host_bad_and_the_power_limit_does_not() -> None:
    def hot(reason: str) -> Record:
        telemetry = {"n3": {"GPU-1": {"index": 1, "throttle_reasons": {reason: 0.4}}}}
        ended_well, seen = matmul()
        assert seen is not None
        return ended_well, replace(seen, telemetry=telemetry)

    assert words(judged(hot("hw_thermal_slowdown"))) == {**ALL_GOOD, "n3": "bad"}
    assert words(judged(hot("sw_power_cap"))) == ALL_GOOD


def test_nvlinks_that_are_down_make_their_host_bad() -> None:
    up = [{"gpu": gpu, "link": link, "is_active": True, "errors": {}} for gpu in (0, 1) for link in (0, 1)]
    down = [*up[:3], {**up[3], "is_active": False}]
    ended_well, seen = matmul()
    assert seen is not None
    links_of_ranks = [{"before": down if rank == 2 else [], "during": [], "after": []} for rank in range(4)]
    found = judged((ended_well, replace(seen, passes={"nvlink": links_of_ranks})))
    assert words(found) == {**ALL_GOOD, "n2": "bad"}


@pytest.mark.parametrize(
    ("odd", "not_judged"),
    [(("n3",), {"n3"}), (("n2", "n3"), {*NAMES})],
)
def test_a_host_unlike_most_is_not_judged_and_of_two_halves_none(odd: Sequence[str], not_judged: set[str]) -> None:
    described = {host: {"cpu_model": "y" if host in odd else "x"} for host in NAMES}
    found = judged(matmul(), environment={"hosts": described})
    assert words(found) == {host: "not judged" if host in not_judged else "good" for host in NAMES}
    # another order of hosts, which was asked for, leaves them as unlike as they were
    assert found["n3"].takes == ("the suite again once hosts are alike in what they run and have",)


def test_another_kernel_is_a_note_and_says_nothing() -> None:
    described = {host: {"kernel": "6.9" if host == "n3" else "6.8"} for host in NAMES}
    assert words(judged(matmul(), environment={"hosts": described})) == ALL_GOOD


# Outcomes

OF_RANK_2 = {"rank": 2, "host": "n2"}


@pytest.mark.parametrize(
    ("record", "expected", "kind"),
    [
        (ended(blame="host", lost_hosts=("n2",), **OF_RANK_2), {"n2": "bad"}, "lost"),
        (ended(blame="host", lost_hosts=("n2", "n3"), **OF_RANK_2), {"n2": "bad", "n3": "bad"}, "lost"),
        (ended(blame="host", lost_hosts=("n2.fabric.example",), host="n2.fabric.example"), {"n2": "bad"}, "lost"),
        (ended(blame="link", lost_hosts=("n2",), **OF_RANK_2), NONE_JUDGED, "silence"),
        (ended(blame="link", lost_hosts=("n0", "n2", "n3"), host="n1"), {"n1": "bad"}, "link down"),
        (ended(blame="process", **OF_RANK_2), {"n2": "not judged"}, "process"),
        (ended(blame="process", lost_hosts=("n2",), **OF_RANK_2), {"n2": "not judged"}, "process"),
        (ended("timeout", blame="process", **OF_RANK_2), {"n2": "not judged"}, "process"),
        (ended("out_of_memory", blame="process", **OF_RANK_2), {"n2": "not judged"}, "memory"),
        (ended(blame="program", **OF_RANK_2), {}, ""),
        (ended("out_of_memory", blame="program", **OF_RANK_2), {}, ""),
        (ended(blame="unknown", **OF_RANK_2), NONE_JUDGED, "unexplained"),
        (ended("timeout", blame="unknown"), NONE_JUDGED, "unexplained"),
        (ended("wrong", blame="program", **OF_RANK_2), NONE_JUDGED, "wrong result"),
        (ended("wrong", blame="process", **OF_RANK_2), NONE_JUDGED, "wrong result"),
        (ended("skipped", **OF_RANK_2), {}, ""),
        (ended(**OF_RANK_2), {"n2": "not judged"}, "process"),  # of a run that recorded no blame
        (ended(lost_hosts=("n2",), **OF_RANK_2), {"n2": "not judged"}, "process"),
    ],
)
def test_each_kind_of_outcome_says_what_it_can_say(record: Record, expected: Mapping[str, str], kind: str) -> None:
    found = judged(matmul(), record)
    assert words(found) == {**ALL_GOOD, **expected}
    kinds = {evidence.kind for host in expected for evidence in found[host].evidence}
    assert (kind in kinds) == bool(kind)
    assert all(host.takes for host in found.values() if host.judged == "not judged")


def test_every_blame_has_its_case_above() -> None:
    (mark,) = test_each_kind_of_outcome_says_what_it_can_say.pytestmark  # type: ignore[attr-defined]
    assert {record[0].blame for record, _, _ in mark.args[1]} == {*get_args(Blame)}


def test_what_the_suite_expects_says_nothing_but_a_loss_does() -> None:
    expects = replace(OTHER, expected_outcomes=("failed",))
    assert words(judged(matmul(), ended(of=expects, blame="process", **OF_RANK_2), cases=[MATMUL, expects])) == ALL_GOOD
    lost = ended(of=expects, blame="host", lost_hosts=("n2",), **OF_RANK_2)
    assert words(judged(matmul(), lost, cases=[MATMUL, expects])) == {**ALL_GOOD, "n2": "bad"}


def test_a_start_that_was_disturbed_and_went_well_again_says_nothing() -> None:
    again = outcome(OTHER, attempt=2), observation(OTHER, attempt=2, hosts=NAMES)
    assert words(judged(matmul(), ended(blame="unknown", **OF_RANK_2), again)) == ALL_GOOD


def test_a_host_that_took_part_again_is_not_judged_unless_it_is_lost_once_more() -> None:
    lost = ended(blame="host", lost_hosts=("n2",), **OF_RANK_2)
    once, back = judged(matmul(), lost), {"returned hosts": {"n2": 1}}
    returned = judged(matmul(), lost, environment=back)
    twice = judged(matmul(), lost, ended(blame="host", lost_hosts=("n2",), attempt=2, **OF_RANK_2), environment=back)
    assert [found["n2"].judged for found in (once, returned, twice)] == ["bad", "not judged", "bad"]
    assert returned["n2"].evidence[0].sentence == "other/4n4/x: it broke; it took part again later"
    assert words(returned) == {**ALL_GOOD, "n2": "not judged"}


def test_a_host_that_a_launcher_calls_by_an_address_may_be_any_of_them() -> None:
    found = judged(matmul(), ended(blame="host", lost_hosts=("10.0.0.3",), host="10.0.0.3"))
    assert words(found) == {**NONE_JUDGED, "10.0.0.3": "bad"}
    assert found["n1"].evidence[0].sentence == "other/4n4/x: it broke; no host calls itself 10.0.0.3"


def test_why_a_host_is_bad_stands_before_what_may_be_any_hosts() -> None:
    """Of a host with a rank that was 30 % slower the first words were that a wrong result may be any host's."""
    found = judged(matmul({2: 1.5}), ended("wrong", blame="program", **OF_RANK_2))
    assert [evidence.kind for evidence in found["n2"].evidence] == ["straggler", "wrong result"]


def test_of_very_many_failures_the_first_are_told() -> None:
    cases = [case(f"x{number}", num_nodes=4) for number in range(50)]
    found = judged(matmul(), *(ended(of=of, blame="process", **OF_RANK_2) for of in cases), cases=[MATMUL, *cases])
    told = [evidence.sentence for evidence in found["n2"].evidence if evidence.kind == "process"]
    assert (len(told), told[-1]) == (6, "and 45 more of this kind")
    assert len(found["n2"].takes) == 5


def test_cases_are_counted_and_not_their_repeats() -> None:
    again = outcome(MATMUL, repeat=2), observation(MATMUL, repeat=2, hosts=NAMES)
    two = outcome(OTHER), observation(OTHER, hosts=NAMES[:2])
    found = judged(matmul(), again, two)
    counts = [host.evidence[-1].sentence for host in found.values()]
    assert counts == [f"{count} of 2 cases that ended well ran here" for count in (2, 2, 1, 1)]


# Notes of environment.json


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"lost hosts": {"n2": "no process could be started there any more"}}, {"n2": "bad"}),
        ({"absent hosts": {"n9": "no process could be started there before the run began"}}, {"n9": "bad"}),
        ({"silent hosts": {"n2": "its agent said nothing for 20 s"}}, NONE_JUDGED),
        ({"returned hosts": {"n2": 1}}, {"n2": "not judged"}),
        ({"spares": {"n9": "was not needed"}}, {"n9": "not judged"}),
        ({"spares": {"n3": "took the place of n2"}, "lost hosts": {"n2": "it is gone"}}, {"n2": "bad"}),
        ({"spares": 7, "lost hosts": ["n2"], "returned hosts": {"n2": "x"}}, {"n2": "not judged"}),  # damaged
    ],
)
def test_each_note_of_a_host_says_what_it_can_say(environment: Mapping[str, Any], expected: Mapping[str, str]) -> None:
    assert words(judged(matmul(), environment=environment)) == {**ALL_GOOD, **expected}


def test_a_spare_that_took_a_place_is_judged_by_what_it_did_there() -> None:
    found = judged(matmul(), environment={"spares": {"n3": "took the place of n9"}, "absent hosts": {"n9": "gone"}})
    assert "named as a spare: took the place of n9" in {evidence.sentence for evidence in found["n3"].evidence}


REPLACED = ("n0", "n1", "n2", "n4")
"""A spare has the place of n3, which went away between two repeats."""


@pytest.mark.parametrize("lost_after", [1, 2])
def test_a_slow_host_that_was_replaced_is_bad_and_not_the_one_in_its_place(lost_after: int) -> None:
    """Repeats were pooled by the number of a rank, and what two hosts did in one place stood under the last one."""
    repeated = replace(MATMUL, repeats=3)
    records = []
    for repeat in range(3):
        slow, hosts = ({3: 1.6}, NAMES) if repeat < lost_after else ({}, REPLACED)
        ended, seen = matmul(slow, repeated, hosts)
        records.append((replace(ended, repeat=repeat), replace(seen, repeat=repeat)))
    found = judged(*records, rows=links(hosts=REPLACED), cases=[repeated])
    assert words(found) == {**dict.fromkeys(("n0", "n1", "n2", "n4"), "good"), "n3": "bad"}


@pytest.mark.parametrize("lost_after", [1, 2])
def test_links_of_a_host_that_was_replaced_are_its_own(tmp_path: Path, lost_after: int) -> None:
    """A spare was called slow, and left out by --exclude, for the links of the host that it had replaced."""
    cluster = Cluster(4, 1, "cpu", hosts=NAMES)
    (point,) = LinkMatrix().points(Place(cluster, 4))
    between = case("l", id="link_matrix/4n4/l", benchmark="link_matrix", num_nodes=4, point=point, repeats=3)
    records = []
    for repeat in range(3):
        hosts = NAMES if repeat < lost_after else REPLACED
        samples: list[dict[str, list[float]]] = [{} for _ in hosts]
        for a, b in permutations(range(4), 2):
            rate = (0.5 if "n3" in (hosts[a], hosts[b]) else 1.0) * (1e9 + 1e6 * a)
            samples[a][metric_key("pair_bandwidth", source=str(a), part=str(b))] = [rate] * 10
        seen = replace(observation(between, repeat=repeat, hosts=hosts), passes={SAMPLES: samples})
        records.append((outcome(between, repeat=repeat), seen))
    read_again = read(write_run(tmp_path / "run", [between], records, cluster=cluster))
    found = judge_hosts(read_again, answers := examine(read_again))
    assert isinstance(found, Hosts)
    assert found.named("bad") == ["n3"]
    assert [finding.title for finding in answers["slow_link"].findings] == ["n3, 50 % slower than its peers"]
    assert set(answers["slow_link"].good_hosts) == {*REPLACED}


def test_an_import_has_no_hosts() -> None:
    imported = case("i", benchmark="imported")
    read = reading((outcome(imported), observation(imported)), cases=[imported])
    assert judge_hosts(read, examine(read)) is None
