from clusterbench.charts.top_config import TopConfig
from clusterbench.rows import Row
from tests.charts.steps import trained


def step(layout: str, speed: float | None, shape: str = "small", status: str = "ok") -> list[Row]:
    return trained(layout, None if speed is None else {"tokens_per_s": speed}, status=status, shape=shape)


FOUR = [*step("dp4", 900), *step("tp4", 700), *step("pp4", 800), *step("dp2-tp2", None, status="failed")]
LARGE = [*step("dp4", None, "large", "out_of_memory"), *step("tp4", None, "large", "refused")]


def texts(rows: list[Row]) -> list[str]:
    (figure,) = TopConfig().draw(TopConfig().select(rows) or [])
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def test_the_answer_names_the_best_of_each_shape_and_what_is_missing() -> None:
    chart = TopConfig()
    data = chart.select([*step("tp1", 300), *FOUR])
    assert data is not None
    assert chart.answer(data) == (
        "Fastest are small on 4 ranks with dp4 (900 tokens/s, best of 3). Without a figure: 1 failed."
    )


def test_a_cell_names_its_layout_or_how_its_cases_ended() -> None:
    assert texts([*FOUR, *LARGE]) == ["dp4", "900, best of 3\n× 1 failed", "× 1 out of memory, × 1 refused"]


def test_what_was_not_tried_says_so() -> None:
    assert "not tried" in texts([*FOUR, *step("tp1", 300, "large")])


def test_layouts_tried_in_several_ways_are_no_heatmap() -> None:
    rows = [*FOUR, *step("tp1", 3), *trained("pp4", {"tokens_per_s": 9}, shape="small", schedule="zbv")]
    assert TopConfig().select(rows) is None


def test_degrees_of_one_parallelism_show_nothing() -> None:
    assert TopConfig().select([*step("tp1", 9), *step("tp2", 8), *step("tp2+sp", 8), *step("tp4", 7)]) is None
