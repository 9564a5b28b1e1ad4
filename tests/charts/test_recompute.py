from clusterbench.charts.recompute import Recompute
from clusterbench.rows import Row
from tests.charts.steps import MIB, trained
from tests.report.synthetic import of_rows


def step(recompute: str, memory: float, speed: float, layout: str = "dp2", **figures: float) -> list[Row]:
    seen = {"peak_memory/total": memory * MIB, "tokens_per_s_per_rank": speed, **figures}
    return trained(layout, seen, recompute=recompute)


ROWS = [*step("none", 100, 1000), *step("full", 40, 750)]


def test_the_answer_names_what_is_saved_and_what_is_paid() -> None:
    chart = Recompute()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "With dp2, full recomputation lowers peak memory by 60 %, from 100 to 40 MiB, for 25 % less throughput "
        "(750 tokens/s per rank)."
    )


def test_arithmetic_is_drawn_where_a_peak_is_known() -> None:
    known = {"mfu/measured": 0.3, "hfu/measured": 0.3}
    again = {"mfu/measured": 0.27, "hfu/measured": 0.36}
    chart = Recompute()
    with_peak = chart.select(of_rows([*step("none", 9, 9, **known), *step("full", 4, 8, **again)]))
    assert [len(chart.draw(data)) for data in (chart.select(of_rows(ROWS)), with_peak) if data] == [2, 3]


def test_the_executed_rate_is_drawn_where_it_was_counted() -> None:
    chart, rate = Recompute(), "executed_flops_per_s_per_rank"
    data = chart.select(of_rows([*step("none", 9, 9, **{rate: 5e14}), *step("full", 4, 8, **{rate: 6e14})]))
    assert data is not None
    panels = chart.draw(data)
    assert len(panels) == 3
    assert "Executed FLOP/s per rank" in panels[-1].title


def test_one_way_of_recomputing_shows_nothing() -> None:
    assert Recompute().select(of_rows(step("full", 40, 750))) is None


def test_a_run_about_something_else_shows_nothing() -> None:
    others = [row for degree in (1, 2, 4, 8) for row in step("none", 9, 9, f"tp{degree}")]
    assert Recompute().select(of_rows([*ROWS, *others])) is None


def test_what_neither_saves_nor_costs_is_said_so() -> None:
    chart = Recompute()
    data = chart.select(of_rows([*step("none", 100, 1000), *step("selective", 100, 1001)]))
    assert data is not None
    assert chart.answer(data) == (
        "With dp2, selective recomputation leaves peak memory at 100 MiB, for as much throughput (1,001 tokens/s per "
        "rank)."
    )


def test_cases_that_were_lost_take_no_chart_from_those_that_were_measured() -> None:
    lost = [row for kind in ("selective", "full") for row in trained("tp2", status="timeout", recompute=kind)]
    assert Recompute().select(of_rows([*ROWS, *step("none", 9, 9, "tp2"), *lost])) is not None
