from clusterbench.charts.expert_scaling import ExpertScaling
from clusterbench.rows import Row
from tests.charts.steps import trained
from tests.report.synthetic import of_rows


def step(
    layout: str, travel: float, fullest: float, speed: float, routing: str = "real", **options: object
) -> list[Row]:
    figures = {
        "expert_time/dispatch": travel / 2,
        "expert_time/experts": 0.1,
        "expert_time/combine": travel / 2,
        "expert_imbalance/ranks": fullest,
        "tokens_per_s_per_rank": speed,
    }
    return trained(layout, figures, routing=routing, **options)


ROWS = [*step("dp4", 0.025, 1.0, 900), *step("dp4+ep4", 0.3, 1.6, 500), *step("dp4+ep4", 0.2, 1.0, 600, "balanced")]


def test_the_answer_names_travel_imbalance_and_what_an_even_load_brings() -> None:
    chart = ExpertScaling()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "From ep1 to ep4 dispatch and combine go from 25 to 300 ms, 75 % of the time in the experts (ep1: 20 %); the "
        "fullest rank gets 1.60 times the mean rank's rows, and an even load brings 20 % more throughput."
    )


def test_overlap_is_a_bar_of_its_own() -> None:
    rows = [*ROWS, *step("dp4+ep4", 0.3, 1.6, 550, expert_overlap=True)]
    times, speed = ExpertScaling().draw(ExpertScaling().select(of_rows(rows)) or [])
    labels = [label.get_text() for label in times.figure.axes[0].get_yticklabels()]
    assert labels == ["ep1, real", "ep4, real", "ep4, real, overlap", "ep4, balanced"]
    assert len(speed.figure.axes[0].patches) == 4


def test_without_expert_parallelism_it_shows_nothing() -> None:
    assert ExpertScaling().select(of_rows(step("dp4", 0.0, 1.0, 900))) is None


def test_dense_models_show_nothing() -> None:
    rows = [*trained("dp4", {"tokens_per_s_per_rank": 9}), *trained("dp2-tp2", {"tokens_per_s_per_rank": 9})]
    assert ExpertScaling().select(of_rows(rows)) is None
