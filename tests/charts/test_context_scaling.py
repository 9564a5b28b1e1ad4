from clusterbench.charts.context_scaling import ContextScaling
from clusterbench.rows import Row
from tests.charts.steps import MIB, trained
from tests.report.synthetic import of_rows


def step(layout: str, speed: float, held: float, **options: object) -> list[Row]:
    figures = {"tokens_per_s_per_rank": speed, "peak_memory/activations": held * MIB}
    return trained(layout, figures, seq_len=512, **options)


ROWS = [
    *step("tp1", 1000, 80),
    *step("cp2", 900, 40, context="ring"),
    *step("cp2", 800, 44, context="ulysses"),
    *step("cp4", 500, 20, context="ring"),
    *step("cp4", 700, 22, context="ulysses"),
]


def test_the_answer_names_the_fastest_kind_and_the_saving() -> None:
    chart = ContextScaling()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "From cp1 to cp4 ulysses, the fastest of 2 kinds, keeps 70 % of the throughput per rank (ring: 50 %) and "
        "lowers peak activations by 72 %, from 80 to 22 MiB."
    )


def test_every_kind_starts_from_the_case_without_cp() -> None:
    (curve,) = ContextScaling().select(of_rows(ROWS)) or []
    assert {kind: [mark.x for mark in series.marks] for kind, series in curve.throughput.items()} == {
        "ring": [1, 2, 4],
        "ulysses": [1, 2, 4],
    }
    assert len(ContextScaling().draw([curve])) == 2


def test_layouts_of_equal_ranks_are_one_curve() -> None:
    rows = [*step("dp4", 9, 9), *step("dp2-cp2", 8, 5, context="ring"), *step("cp4", 7, 3, context="ring")]
    (curve,) = ContextScaling().select(of_rows(rows)) or []
    assert [mark.value for mark in curve.throughput["ring"].marks] == [9, 8, 7]


def test_a_case_without_a_figure_is_a_gap() -> None:
    lost = trained("tp1", status="out_of_memory", seq_len=512)
    (curve,) = ContextScaling().select(of_rows([*lost, *ROWS[2:]])) or []
    assert curve.throughput["ring"].marks[0].status == "out_of_memory"


def test_without_cp_it_shows_nothing() -> None:
    assert ContextScaling().select(of_rows([*step("tp1", 9, 9), *step("tp2", 8, 8)])) is None


def test_one_rank_has_options_of_data_parallelism_and_is_the_start_all_the_same() -> None:
    (curve,) = ContextScaling().select(of_rows([*step("tp1", 1000, 80, compress="none"), *ROWS[3:]])) or []
    assert [mark.x for mark in curve.throughput["ring"].marks] == [1, 2, 4]


def test_on_one_node_and_on_two_all_degrees_of_each_are_a_curve_and_a_line_of_the_answer() -> None:
    rows = [
        each._replace(num_nodes=nodes)
        for nodes, layouts in ((1, ("dp4", "dp2-cp2", "cp4")), (2, ("dp8", "dp4-cp2", "dp2-cp4")))
        for speed, layout in zip((9, 8, 6), layouts, strict=True)
        for each in step(layout, speed, speed, **({"context": "ring"} if "cp" in layout else {}))
    ]
    chart = ContextScaling()
    data = chart.select(of_rows(rows))
    assert data is not None
    assert [curve.throughput["ring"].marks[-1].x for curve in data] == [4, 4]
    words = (
        "from cp1 to cp4 ring keeps 67 % of the throughput per rank and lowers peak activations by 33 %, from 9 to 6"
    )
    assert chart.answer(data).splitlines() == [f"1 node: {words} MiB.", f"2 nodes: {words} MiB."]


def test_the_answer_says_where_a_degree_has_no_figure() -> None:
    chart = ContextScaling()
    data = chart.select(of_rows([*trained("tp1", status="out_of_memory", seq_len=512), *ROWS[2:]]))
    assert data is not None
    assert chart.answer(data) == (
        "From cp2 to cp4 ulysses, the fastest of 2 kinds, keeps 88 % of the throughput per rank (ring: 62 %) and "
        "lowers peak activations by 50 %, from 44 to 22 MiB; cp1: out of memory."
    )
