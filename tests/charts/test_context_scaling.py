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
