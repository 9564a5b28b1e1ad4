from collections.abc import Callable
from itertools import permutations

import pytest

from clusterbench.cases.matrices import matrices
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


def test_one_slow_direction_is_named_as_one() -> None:
    rows = links(lambda source, part: 0.5 if (source, part) == ("n4", "n2") else 1.0)
    assert said(rows) == [("n4 -> n2", "the link carries 50 % of what the median link does")]


def test_a_slow_node_is_named_once() -> None:
    rows = links(lambda source, part: 0.5 if "n3" in (source, part) else 1.0)
    assert said(rows) == [("n3", "slow with most of its partners: 50 % of what the median node carries")]


def test_a_slow_block_is_named_with_its_members() -> None:
    leaf = ("n1", "n2", "n7")
    rows = links(lambda source, part: 0.5 if (source in leaf) != (part in leaf) else 1.0)
    assert said(rows) == [
        ("n1, n2, n7", "slow with all others and fast among themselves: links across carry 50 % of those inside")
    ]


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
