from clusterbench.charts.top_config import TopConfig
from clusterbench.rows import Row
from tests.charts.steps import trained


def step(layout: str, speed: float | None, shape: str = "small", status: str = "ok") -> list[Row]:
    return trained(layout, None if speed is None else {"tokens_per_s": speed}, status=status, shape=shape)


FOUR = [*step("dp4", 900), *step("tp4", 700), *step("pp4", 800), *step("dp2-tp2", None, status="failed")]
LARGE = [*step("dp4", None, "large", "out_of_memory"), *step("tp4", None, "large", "refused")]


def texts(rows: list[Row]) -> list[str]:
    (figure,) = TopConfig().draw(TopConfig().select(rows) or [])
    return [text.get_text() for text in figure.figure.axes[0].texts if text.get_text()]


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


def tried(layout: str, micro: int, speed: float | None, mfu: float | None = None, **options: object) -> list[Row]:
    figures = {} if speed is None else {"tokens_per_s": speed}
    rows = trained(layout, figures, shape="small", micro_batch_size=micro, **options)
    if mfu is None:
        return rows
    as_printed = rows[0]._replace(metric="mfu", value=mfu, detail={"source": "imported"})
    ratio = rows[0]._replace(metric="mfu_over_recomputed", value=1.2 if "pp" in layout else 1.0)
    return [*rows, as_printed, ratio]


def test_micro_batches_are_chosen_together_with_the_layout() -> None:
    rows = [*tried("dp4", 1, 900), *tried("dp4", 2, 950), *tried("tp4", 1, 700), *tried("pp4", 1, 800)]
    assert texts([*rows, *tried("tp1", 1, 300)]) == [
        "tp1, mbs 1",
        "300, best of 1",
        "dp4, mbs 2",
        "950, best of 4",
    ]


def test_the_best_of_several_attempts_counts_and_a_tie_names_both() -> None:
    rows = [
        *tried("dp4", 1, 900, attempt=1),
        *tried("dp4", 1, 950, attempt=2),
        *tried("tp4", 1, 950, attempt=1),
        *tried("pp4", 1, 800, attempt=1),
        *tried("tp1", 1, 300, attempt=1),
    ]
    assert "dp4\ntp4" in texts(rows)
    assert TopConfig().answer(TopConfig().select(rows) or []) == (
        "Fastest are small on 4 ranks with dp4 or tp4 (950 tokens/s, best of 4)."
    )


def test_an_imported_mfu_that_would_choose_otherwise_is_shown_with_the_reason() -> None:
    rows = [
        *tried("dp4", 1, 900, 0.40),
        *tried("tp4", 1, 700, 0.31),
        *tried("pp4", 1, 800, 0.45),
        *tried("tp1", 1, 300, 0.50),
    ]
    chart = TopConfig()
    data = chart.select(rows) or []
    speed, mfu = chart.draw(data)
    assert "dp4" in [text.get_text() for text in speed.figure.axes[0].texts]
    assert [text.get_text() for text in mfu.figure.axes[0].texts] == [
        "tp1",
        "50.0, best of 1",
        "pp4",
        "45.0, best of 3",
    ]
    assert chart.answer(data) == (
        "Fastest are small on 4 ranks with dp4 (900 tokens/s, best of 3). Ranked by the imported MFU instead, 1 of 2 "
        "cells name another layout or micro-batch. The imported MFU does not follow from throughput alone: over the "
        "MFU recomputed from it, it is 1.200 for small with pp > 1, and 1.00 for all others."
    )
