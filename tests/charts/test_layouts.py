from clusterbench.charts.layouts import Layouts
from clusterbench.rows import Row
from tests.charts.steps import trained
from tests.report.synthetic import of_rows


def step(layout: str, speed: float, **options: object) -> list[Row]:
    return trained(layout, {"tokens_per_s_per_rank": speed, "parity_loss": 1e-7}, **options)


ROWS = [*step("dp4", 900), *step("dp2-tp2", 500), *step("pp4", 300, schedule="zbv")]


def test_the_answer_says_what_was_proved_and_which_is_fastest() -> None:
    chart = Layouts()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "All 3 layouts compute what one rank computes; of 3 for tiny on 4 ranks dp4 is the fastest with 900 tokens/s "
        "per rank; the runner-up, dp2-tp2, takes 80 % longer for a step."
    )


def test_a_wrong_layout_is_counted_and_has_no_bar() -> None:
    chart = Layouts()
    data = chart.select(of_rows([*ROWS, *trained("cp4", status="wrong", context="ring")]))
    assert data is not None
    assert chart.answer(data).startswith("3 of 4 layouts compute what one rank computes, 1 did not;")
    (figure,) = chart.draw(data)
    assert "× wrong" in [text.get_text() for text in figure.figure.axes[0].texts]


def test_numbers_of_ranks_are_panels_of_their_own() -> None:
    more = [*step("dp8", 9), *step("tp8", 8), *step("dp4-tp2", 7)]
    assert len(Layouts().draw(Layouts().select(of_rows([*ROWS, *more])) or [])) == 2


def test_degrees_of_one_parallelism_show_nothing() -> None:
    assert Layouts().select(of_rows([*step("tp4", 9), *step("tp4+sp", 8), *step("tp2", 8)])) is None


def test_a_layout_that_was_cut_short_is_not_said_to_be_wrong() -> None:
    chart = Layouts()
    data = chart.select(of_rows([*ROWS, *trained("cp4", status="timeout", context="ring")]))
    assert data is not None
    assert chart.answer(data).startswith(
        "3 of 4 layouts compute what one rank computes, 1 ended before that was known;"
    )


def test_layouts_too_few_to_rank_are_counted_below_the_chart() -> None:
    chart = Layouts()
    assert chart.left_out(chart.select(of_rows([*ROWS, *step("dp8", 9)])) or []) == (
        "Not drawn: 1 layout, too few of its workload and number of ranks to rank."
    )
