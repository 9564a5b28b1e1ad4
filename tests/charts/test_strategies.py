from clusterbench.charts.strategies import Strategies
from clusterbench.rows import Row
from tests.charts.steps import MIB, trained
from tests.report.synthetic import of_rows


def step(layout: str, total: float, optimizer: float = 8, activations: float = 20, **options: object) -> list[Row]:
    figures = {
        "peak_memory/optimizer_state": optimizer * MIB,
        "peak_memory/activations": activations * MIB,
        "peak_memory/total": total * MIB,
    }
    return trained(layout, figures, **{"recompute": "none", **options})


ROWS = [
    *step("dp4", 40),
    *step("dp4+zero1", 30, optimizer=2),
    *step("dp4+zero3", 25, optimizer=2),
    *step("dp4", 22, activations=5, recompute="full"),
    *step("tp4", 18, optimizer=4, activations=8),
    *step("pp4", 20, optimizer=4, activations=15, schedule="1f1b"),
]


def test_the_answer_names_the_leanest_and_who_saves_what() -> None:
    chart = Strategies()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "Of 5 strategies tp4 saves most against dp4: it lowers peak memory by 55 %, from 40 to 18 MiB; of optimizer "
        "state dp4+zero1 saves most, 75 %; of activations dp4, full recompute saves most, 75 %."
    )


def test_bars_go_from_the_fullest_to_the_leanest() -> None:
    (figure,) = Strategies().draw(Strategies().select(of_rows(ROWS)) or [])
    labels = [label.get_text() for label in figure.figure.axes[0].get_yticklabels()]
    assert labels == ["dp4", "dp4+zero1", "dp4+zero3", "dp4, full recompute", "pp4", "tp4"]


def test_out_of_memory_stands_first() -> None:
    rows = [*ROWS, *trained("cp4", status="out_of_memory", recompute="none")]
    (figure,) = Strategies().draw(Strategies().select(of_rows(rows)) or [])
    assert "× out of memory" in [text.get_text() for text in figure.figure.axes[0].texts]


def test_without_plain_data_parallelism_there_is_nothing_to_compare_with() -> None:
    assert Strategies().select(of_rows(ROWS[3:])) is None


def test_different_numbers_of_ranks_are_no_comparison() -> None:
    assert Strategies().select(of_rows([*ROWS, *step("dp8", 30)])) is None


def test_where_nothing_saves_memory_it_is_said_so() -> None:
    others = [step(layout, 50, 9, 21) for layout in ("dp4+zero1", "dp4+zero3", "tp4", "pp4", "cp4")]
    chart = Strategies()
    data = chart.select(of_rows([*step("dp4", 40), *(row for rows in others for row in rows)]))
    assert data is not None
    assert chart.answer(data) == "None of 5 strategies saves memory against dp4."
