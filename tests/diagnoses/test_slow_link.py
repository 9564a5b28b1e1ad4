import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from clusterbench.cases.matrices import matrices
from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.slow_link import SlowLink
from clusterbench.rows import Row
from tests.report.synthetic import case, reading, row

NODES = tuple(f"n{number}" for number in range(1, 9))


def links(
    share: Callable[[str, str], float] = lambda source, part: 1.0,
    names: tuple[str, ...] = NODES,
    metric: str = "pair_bandwidth",
    **detail: str,
) -> list[Row]:
    """Every pair at 10 GB/s, give or take a percent, times its share."""
    hosts = " ".join(dict.fromkeys(name.partition(":")[0] for name in names))
    found = []
    for number, (source, part) in enumerate(permutations(names, 2)):
        rate = 10e9 * (1 + (number % 5 - 2) / 200) * share(source, part)
        ends = {"source": source, "part": part, **detail}
        low, high = 0.98 * rate, 1.02 * rate
        found.append(row(case("links"), metric, rate, low=low, high=high, unit="B/s", hosts=hosts, detail=ends))
    return found


def said(rows: list[Row]) -> list[tuple[str, str]]:
    return [(one.where, one.what) for one in SlowLink().findings(reading(cases=[case("links")], rows=rows))]


def between(*pair: str) -> Callable[[str, str], float]:
    return lambda source, part: 0.5 if {source, part} == {*pair} else 1.0


def test_a_healthy_fabric_is_silent() -> None:
    assert said(links()) == []


def test_a_slow_link_is_named_with_what_it_carries_and_what_others_do() -> None:
    (finding,) = SlowLink().findings(reading(cases=[case("links")], rows=links(between("n2", "n4"))))
    assert finding.where == "n2 <-> n4"
    assert finding.what == "the link carries 50 % of what the median link does"
    assert finding.severity == "warning"
    assert finding.evidence == "planted/1n4/links: measured 5.0 GB/s, median 10.0 GB/s over 56 cells"


def test_of_two_runs_it_is_said_in_which_a_link_is_slow_and_each_is_judged_by_its_own() -> None:
    """'n2 <-> n4' of a cluster before and after was of neither, and two nodes now were judged by those of then."""

    def of_run(run: str, rows: list[Row]) -> list[Row]:
        return [one._replace(run=run, case=f"{run}: {one.case}") for one in rows]

    def answered_beside(rows: list[Row]) -> Answer:
        beside = reading(cases=[case("links")], rows=[*of_run("a", links()), *of_run("b", rows)])
        return SlowLink().answer(replace(beside, hosts_of_runs=(NODES, NODES)))

    found = answered_beside(links(between("n2", "n4")))
    assert [finding.brief for finding in found.findings] == ["50 % slower than its peers in b"]
    assert found.healthy[0].startswith("a: links between n1, n2, n3, n4 and 4 more are alike")
    (part,) = answered_beside(links(names=NODES[:2])).not_judged
    assert part.what == "b: links between n1, n2"


def test_one_slow_direction_is_named_as_one() -> None:
    rows = links(lambda source, part: 0.5 if (source, part) == ("n4", "n2") else 1.0)
    assert said(rows) == [("n4 -> n2", "the link carries 50 % of what the median link does")]


def test_a_slow_node_is_named_once() -> None:
    rows = links(lambda source, part: 0.5 if "n3" in (source, part) else 1.0)
    assert said(rows) == [("n3", "slow with most of its partners: 50 % of what the median node carries")]
    (finding,) = answered(rows).findings
    assert (finding.host, finding.among) == ("n3", ())


def test_a_slow_block_is_named_with_its_members() -> None:
    leaf = ("n1", "n2", "n7")
    rows = links(lambda source, part: 0.5 if (source in leaf) != (part in leaf) else 1.0)
    assert said(rows) == [
        ("n1, n2, n7", "slow with all others and fast among themselves: links across carry 50 % of those inside")
    ]
    (finding,) = answered(rows).findings
    assert (finding.host, finding.among) == ("", leaf)


def test_the_second_pass_confirms() -> None:
    again = [
        one for one in links(between("n2", "n4"), metric="proven_bandwidth") if {*one.detail.values()} == {"n2", "n4"}
    ]
    (finding,) = SlowLink().findings(reading(cases=[case("links")], rows=[*links(between("n2", "n4")), *again]))
    assert finding.evidence.endswith("; again 5.0 GB/s in the second pass")


def test_the_second_pass_acquits() -> None:
    again = [one for one in links(metric="proven_bandwidth") if {*one.detail.values()} == {"n2", "n4"}]
    assert said([*links(between("n2", "n4")), *again]) == []


def test_one_good_repetition_acquits() -> None:
    rows = [one._replace(high=10e9) for one in links(between("n2", "n4"))]
    assert said(rows) == []


def test_two_nodes_alone_say_nothing_of_each_other() -> None:
    assert said(links(lambda source, part: 0.5 if source == "n1" else 1.0, names=("n1", "n2"))) == []


@pytest.mark.parametrize("category", ["driver", "host"])
def test_copies_through_host_memory_are_not_compared(category: str) -> None:
    gpus = tuple(f"n1:{gpu}" for gpu in range(8))
    rows = links(between("n1:2", "n1:4"), gpus, "copy_bandwidth", category=category)
    assert said(rows) == []


def test_units_are_in_the_order_of_hosts_and_by_number() -> None:
    names = tuple(f"{host}:{rank}" for rank in (10, 9) for host in ("b", "a"))
    (matrix,) = matrices(links(names=names))
    assert matrix.names == ("b:9", "b:10", "a:9", "a:10")
    assert matrix.host_of == {0: 0, 1: 0, 2: 1, 3: 1}


def test_rows_of_other_benchmarks_are_no_matrix() -> None:
    assert matrices([row(case("copies"), "copy_bandwidth", 1e9, unit="B/s", detail={"category": "device"})]) == []


# How many there are, and what can be said of so few


def answered(rows: list[Row]) -> Answer:
    return SlowLink().answer(reading(cases=[case("links")], rows=rows))


def of_unit(unit: str) -> Callable[[str, str], float]:
    return lambda source, part: 0.45 if unit in (source, part) else 1.0


@pytest.mark.parametrize("count", range(3, 9))
def test_one_slow_node_of_any_number_is_named(count: int) -> None:
    names = NODES[:count]
    (finding,) = answered(links(of_unit(names[-1]), names)).findings
    assert (finding.where, finding.brief) == (names[-1], "55 % slower than its peers")


@pytest.mark.parametrize("count", range(4, 9))
def test_one_slow_gpu_of_a_host_of_any_number_is_named(count: int) -> None:
    gpus = tuple(f"n1:{gpu}" for gpu in range(count))
    (finding,) = answered(links(of_unit(gpus[-1]), gpus)).findings
    assert finding.title == f"{gpus[-1]}, 55 % slower than its peers"


@pytest.mark.parametrize("count", range(3, 9))
def test_one_slow_link_of_any_number_is_named(count: int) -> None:
    (finding,) = answered(links(between("n1", "n2"), NODES[:count])).findings
    assert finding.where == "n1 <-> n2"


def test_two_nodes_are_not_judged_and_it_says_what_that_would_take() -> None:
    (part,) = answered(links(of_unit("n1"), NODES[:2])).not_judged
    assert part.sentence == ("links between n1, n2 (one link has no peer to be held against; it takes a third host)")


def test_three_gpus_of_a_host_are_not_judged_as_two_may_be_joined_by_a_bridge() -> None:
    found = answered(links(of_unit("n1:2"), ("n1:0", "n1:1", "n1:2")))
    assert found.state == "not judged"
    assert found.not_judged[0].why.startswith("they differ by design or by noise, 4.5 GB/s to 10.0 GB/s")


def test_two_sockets_differ_by_design_and_no_gpu_is_blamed() -> None:
    gpus = tuple(f"n1:{gpu}" for gpu in range(4))
    near = {("n1:0", "n1:1"), ("n1:1", "n1:0"), ("n1:2", "n1:3"), ("n1:3", "n1:2")}
    found = answered(links(lambda *pair: 1.0 if pair in near else 0.4, gpus))
    assert (found.state, found.findings) == ("not judged", ())


def test_of_links_that_are_alike_it_says_what_would_have_shown() -> None:
    found = answered(links())
    assert found.state == "healthy"
    assert found.healthy == (
        "links between n1, n2, n3, n4 and 4 more are alike (9.9 GB/s to 10.1 GB/s; one that carries 10 % less would "
        "have shown)",
    )


def test_links_that_two_cases_measured_are_told_with_their_case() -> None:
    """'links inside gpu-01 are alike' stood twice, with other figures: of copies, and of messages."""
    rows = links(names=("n1:0", "n1:1", "n1:2", "n1:3", "n1:4"))
    again = [
        row(case("copies"), "copy_bandwidth", 2e9, unit="B/s", hosts="n1", detail={**of.detail, "category": "peer"})
        for of in rows
    ]
    first, second = (said.partition(" (")[0] for said in answered([*rows, *again]).healthy)
    assert first == f"links inside n1 are alike in {rows[0].case}"
    assert second == "links inside n1 are alike in planted/1n4/copies"


def test_two_nodes_that_are_part_of_a_larger_matrix_are_judged_in_that() -> None:
    rows = [*links(), *(one._replace(case="two") for one in links(names=NODES[:2]))]
    assert answered(rows).state == "healthy"


def test_ranks_without_a_matrix_are_not_judged_and_one_rank_has_no_link() -> None:
    assert answered([]).not_judged[0].what == "links"
    alone = reading(cases=[case("links", 1)])
    assert SlowLink().answer(alone).state == "nothing to judge"


@pytest.mark.parametrize(
    ("hosts", "device", "state"),
    [
        ({"n1": {"gpus": [], "pcie": []}}, "cpu", "nothing to judge"),
        ({"n1": {"gpus": [{"name": "NVIDIA H100"}], "pcie": []}}, "cpu", "not judged"),
        ({"n1": {"gpus": [], "pcie": [{"kind": "display", "id": "10de:2330"}]}}, "cpu", "not judged"),
        ({"n1": {"gpus": [], "pcie": []}}, "cuda", "not judged"),
        ({"n1": {"gpus": []}, "n2": {"gpus": []}}, "cpu", "not judged"),
    ],
)
def test_one_host_without_gpus_has_no_link_to_judge(hosts: Any, device: Any, state: str) -> None:
    seen = reading(cases=[case("matmul")])
    plan = replace(seen.plan, cluster=replace(seen.plan.cluster, device=device))
    answer = SlowLink().answer(replace(seen, plan=plan, environment={"hosts": hosts}))
    assert answer.state == state
    assert bool(answer.not_applicable) == (state == "nothing to judge")


def noisy(count: int, seed: int, noise: float, is_host: bool) -> list[Row]:
    """Healthy links: each cell and its best sample are off by chance."""
    draw = random.Random(seed)
    names = tuple(f"n1:{unit}" for unit in range(count)) if is_host else NODES[:count]
    rows = []
    for one in links(names=names):
        value = (one.value or 0.0) * math.exp(draw.gauss(0, noise))
        rows.append(one._replace(value=value, high=value * math.exp(abs(draw.gauss(0, noise)))))
    return rows


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.25])  # 0.25: that of reports/examples/fabric-cpu
@pytest.mark.parametrize("is_host", [True, False])
def test_healthy_links_are_blamed_in_at_most_one_of_a_hundred_runs(noise: float, is_host: bool) -> None:
    runs = [(count, seed) for count in range(2, 9) for seed in range(60)]
    blamed = [run for run in runs if answered(noisy(*run, noise, is_host)).findings]
    rate = len(blamed) / len(runs)
    print(f"{noise:.0%} noise {'inside a host' if is_host else 'between nodes'}: {rate:.2%} of healthy runs are blamed")
    assert rate <= 0.01
