from clusterbench.charts.pipeline_bubble import PipelineBubble
from clusterbench.rows import Row
from tests.charts.steps import trained
from tests.report.synthetic import of_rows

HELD = {"naive": 3, "1f1b": 12, "zbv": 13}
"""GiB of activations: what a schedule pays for its bubble."""


def step(
    schedule: str, measured: float, simulated: float, formula: float, speed: float, layout: str = "pp4"
) -> list[Row]:
    figures = {
        "bubble/measured": measured,
        "bubble/measured!": formula,
        "bubble/simulated": simulated,
        "tokens_per_s_per_rank": speed,
        "peak_memory/activations": HELD.get(schedule, 9) * 2.0**30,
    }
    return trained(layout, figures, schedule=schedule)


ROWS = [*step("naive", 0.8, 0.75, 0.75, 100), *step("1f1b", 0.4, 0.3, 0.27, 250), *step("zbv", 0.35, 0.2, 0.1, 240)]


def test_the_answer_puts_measured_simulated_and_formula_side_by_side() -> None:
    chart = PipelineBubble()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "On pp4 zbv idles least, 35 % of the step (simulated 20 %, formula 10 %), and naive most, 80 % of the step "
        "(simulated 75 %, formula 75 %); of activations zbv holds 13GiB, naive 3GiB; fastest is 1f1b with 250 tokens/s "
        "per rank."
    )


def test_the_three_bubbles_are_three_kinds_of_marks() -> None:
    chart = PipelineBubble()
    bubbles, speed, held = chart.draw(chart.select(of_rows(ROWS)) or [])
    lines = {line.get_label(): list(line.get_xdata()) for line in bubbles.figure.axes[0].lines}
    assert lines == {"formula": [10, 27, 75], "measured": [35, 40, 80], "simulated": [20, 30, 75]}
    assert len(speed.figure.axes[0].patches) == len(held.figure.axes[0].patches) == 3


def test_a_schedule_that_failed_keeps_its_place() -> None:
    chart = PipelineBubble()
    rows = [*ROWS, *trained("pp4", status="timeout", schedule="dualpipev")]
    bubbles, *_ = chart.draw(chart.select(of_rows(rows)) or [])
    assert [text.get_text() for text in bubbles.figure.axes[0].texts] == ["× timeout"]


def test_one_schedule_alone_shows_nothing() -> None:
    assert PipelineBubble().select(of_rows(step("1f1b", 0.4, 0.3, 0.27, 250))) is None


def test_of_schedules_that_idle_alike_none_is_first() -> None:
    chart = PipelineBubble()
    data = chart.select(of_rows([*step("1f1b", 0.4, 0.3, 0.27, 250), *step("gpipe", 0.4, 0.3, 0.27, 240)]))
    assert data is not None
    assert chart.answer(data).startswith("On pp4 all 2 schedules idle alike, 40 % of the step (")


def test_each_layout_that_is_drawn_is_answered() -> None:
    chart = PipelineBubble()
    shallow = [*step("naive", 0.6, 0.5, 0.5, 200, "pp2"), *step("zbv", 0.2, 0.1, 0.1, 240, "pp2")]
    data = chart.select(of_rows([*shallow, *ROWS]))
    assert data is not None
    assert [line.split(" idles")[0] for line in chart.answer(data).splitlines()] == ["On pp2 zbv", "On pp4 zbv"]
