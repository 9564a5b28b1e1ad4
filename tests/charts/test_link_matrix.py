from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from clusterbench.cases.matrices import matrices
from clusterbench.charts.link_matrix import LinkMatrix, _pictures
from clusterbench.cluster import Cluster
from clusterbench.rows import Row
from tests.benchmarks.test_link_matrix import in_rails
from tests.report.synthetic import case, of_rows, row

NODES = ("n1", "n2", "n3", "n4")


def links(
    rate: Callable[[str, str], float] = lambda source, part: 10e9,
    names: tuple[str, ...] = NODES,
    metric: str = "pair_bandwidth",
    **detail: str,
) -> list[Row]:
    hosts = " ".join(dict.fromkeys(name.partition(":")[0] for name in names))
    return [
        row(
            case("links"),
            metric,
            rate(source, part),
            unit="s" if metric.endswith("latency") else "B/s",
            hosts=hosts,
            detail={"source": source, "part": part, **detail},
        )
        for source, part in permutations(names, 2)
    ]


def one_slow(source: str, part: str) -> float:
    return 5e9 if {source, part} == {"n2", "n4"} else 10e9


def drawn(rows: list[Row]) -> list[tuple[str, list[str], list[str]]]:
    """Title, names at the axes and texts of each panel."""
    figures = LinkMatrix().draw(LinkMatrix().select(of_rows(rows)) or [])
    return [
        (
            axes.get_title(loc="left"),
            [label.get_text() for label in axes.get_yticklabels()],
            [text.get_text() for text in axes.texts],
        )
        for (axes,) in (figure.figure.axes for figure in figures)
    ]


def test_a_slow_link_is_marked_in_both_directions_and_nothing_else() -> None:
    ((title, names, texts),) = drawn(links(one_slow))
    assert title == "Bandwidth, one way, GB/s"
    assert names == [*NODES]
    assert sorted(texts) == sorted(["10"] * 10 + ["5 !"] * 2)


def test_the_answer_counts_links_and_names_the_slow_one() -> None:
    data = LinkMatrix().select(of_rows(links(one_slow)))
    assert data is not None
    assert LinkMatrix().answer(data) == (
        "All 6 links were measured: median of the others 10.0 GB/s, slowest n2 -> n4 with 5.0 GB/s. "
        "Slower than their peers: n2 <-> n4."
    )


def test_of_equal_links_none_is_marked() -> None:
    data = LinkMatrix().select(of_rows(links()))
    assert data is not None
    assert LinkMatrix().answer(data).endswith("None carries 10 % less than its peers.")
    assert not any("!" in text for _, _, texts in drawn(links()) for text in texts)


def test_a_figure_of_both_ends_stands_in_both_cells() -> None:
    once = [link for link in links(metric="pair_latency") if link.detail["source"] < link.detail["part"]]
    ((title, _, texts),) = drawn(once)
    assert title.startswith("Latency, half a round trip")
    assert len(texts) == 12


def test_copies_inside_hosts_have_a_panel_for_each_host() -> None:
    gpus = tuple(f"n1:{gpu}" for gpu in range(2)) + tuple(f"n2:{gpu}" for gpu in range(2))
    rows = [
        link
        for link in links(names=gpus, metric="copy_bandwidth", category="host")
        if link.detail["source"][:2] == link.detail["part"][:2]
    ]
    assert [(title, names) for title, names, _ in drawn(rows)] == [
        ("Copies, one way, GB/s\nthrough pinned host memory, n1", ["0", "1"]),
        ("Copies, one way, GB/s\nthrough pinned host memory, n2", ["0", "1"]),
    ]


def test_a_large_matrix_has_marks_and_no_figures() -> None:
    names = tuple(f"n{number:02}" for number in range(40))
    ((_, shown, texts),) = drawn(links(lambda a, b: 5e9 if {a, b} == {"n03", "n30"} else 10e9, names))
    assert texts == ["!", "!"]
    assert len(shown) == 20


def test_what_was_not_measured_is_an_empty_cell() -> None:
    some = [link for link in links() if "n3" not in link.detail.values()]
    ((_, names, texts),) = drawn([*some, *(link for link in links() if link.detail["part"] == "n3")][:8])
    assert names == [*NODES]
    assert len(texts) == 8


def test_of_one_link_there_is_no_median_and_one_latency() -> None:
    two = ("n1", "n2")
    latency = links(lambda *_: 2e-3, two, "pair_latency")
    data = LinkMatrix().select(of_rows([*links(names=two), *latency]))
    assert data is not None
    assert LinkMatrix().answer(data).startswith("The one link carries 10.0 GB/s (n1 -> n2, the slower way).")
    assert LinkMatrix().answer(data).endswith("Latency is 2.000 ms.")


def test_the_answer_is_of_the_matrix_with_most_links_and_of_one_with_a_slow_link_before_others() -> None:
    """'links' measures two nodes first: the slow one of four stood behind 'one link has no peer to be held against'."""
    two = links(names=("n1", "n2"))
    four = [one._replace(case=f"{one.case}-4") for one in links(one_slow)]
    healthy = [one._replace(case=f"{one.case}-6") for one in links(names=(*NODES, "n5", "n6"))]
    for rows, begins in (
        ([*two, *four], "All 6 links were measured"),
        ([*two, *four, *healthy], "All 6 links were measured"),
        ([*two, *healthy], "All 15 links were measured"),
    ):
        data = LinkMatrix().select(of_rows(rows))
        assert data is not None
        assert LinkMatrix().answer(data).startswith(begins)


def test_the_answer_says_what_links_within_hosts_carry_and_what_those_between_hosts_do() -> None:
    """Of fabric and acceptance it told NVLinks alone, which are more: the network's bandwidth stood nowhere."""
    gpus = tuple(f"{node}:{gpu}" for node in NODES for gpu in range(3))
    copies = [
        one._replace(case="copies")
        for one in links(lambda *_: 390e9, gpus, "copy_bandwidth")
        if one.detail["source"][:2] == one.detail["part"][:2]
    ]
    data = LinkMatrix().select(of_rows([*links(), *copies]))
    assert data is not None
    assert LinkMatrix().answer(data) == (
        "All 12 links within hosts were measured: median 390.0 GB/s, slowest n1:0 -> n1:1 with 390.0 GB/s. "
        "None carries 10 % less than its peers. "
        "All 6 links between hosts were measured: median 10.0 GB/s, slowest n1 -> n2 with 10.0 GB/s. "
        "None carries 10 % less than its peers."
    )
    data = LinkMatrix().select(of_rows([*links(one_slow), *copies]))
    assert data is not None
    assert LinkMatrix().answer(data).startswith("All 6 links between hosts were measured: median of the others 10.0")


def test_beside_links_between_hosts_stands_what_a_port_carries_by_its_rate() -> None:
    """Links that are slow alike look as healthy ones do: 39.8 GB/s and 19.9 GB/s were both 'none carries 10 % less'."""
    read = of_rows(links())
    port = {"state": "4: ACTIVE", "bits_per_s": 4e11}
    read = replace(
        read,
        plan=replace(read.plan, cluster=Cluster(4, 8, "cuda", "NVIDIA H200")),
        environment={"hosts": {name: {"infiniband": [port] * 8} for name in NODES}},
    )
    said = "None carries 10 % less than its peers. By its rate a port of these hosts carries 50.0 GB/s."
    assert said in LinkMatrix().answer(LinkMatrix().select(read) or [])
    without = replace(read, environment={"hosts": {"n1": {"infiniband": [port]}}})
    assert "By its rate" not in LinkMatrix().answer(LinkMatrix().select(without) or [])


def test_of_several_runs_the_answer_says_of_which_it_is() -> None:
    before = [one._replace(run="a", case="a: links") for one in links()]
    after = [one._replace(run="b", case="b: links") for one in links(one_slow)]
    data = LinkMatrix().select(of_rows([*before, *after]))
    assert data is not None
    assert LinkMatrix().answer(data).startswith("b: all 6 links were measured")


def test_between_gpus_of_different_hosts_there_is_no_link_to_copy_over() -> None:
    gpus = tuple(f"n{host}:{gpu}" for host in (1, 2) for gpu in range(3))
    inside = [
        one for one in links(names=gpus, metric="copy_bandwidth") if one.detail["source"][:2] == one.detail["part"][:2]
    ]
    data = LinkMatrix().select(of_rows(inside))
    assert data is not None
    assert LinkMatrix().answer(data).startswith("All 6 links were measured")  # and not '6 of 15'


def test_a_chart_shows_rails_one_after_the_other() -> None:
    (matrix,) = matrices(in_rails(2, 3, slow=set()))
    ((units),) = [picture.units for picture in _pictures(matrix)]
    assert [matrix.names[unit] for unit in units] == ["n0:0", "n1:3", "n0:1", "n1:4", "n0:2", "n1:5"]
    assert matrix.num_links == 3


@pytest.mark.parametrize(
    ("slow", "place"),
    [({2, 6, 10, 14}, "rail 2 (n0:2, n1:6, n2:10, n3:14)"), ({4, 5, 6, 7}, "n1, in most rails"), ({5}, "n1:5")],
)
def test_a_chart_names_what_the_diagnosis_names(slow: set[int], place: str) -> None:
    (matrix,) = matrices(in_rails(4, 4, slow))
    answer = LinkMatrix().answer([*_pictures(matrix)])
    assert f" Slower than their peers: {place}." in answer
    assert answer.startswith("All 24 links were measured: median of the others 10.0 GB/s, slowest ")
