from dataclasses import replace

from clusterbench.charts.ways import Ways
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from tests.charts.steps import trained
from tests.report.synthetic import case, observation, of_rows

LADDER = {"shape": "llama-8b", "seq_len": 4096}


def step(speed: float, mfu: float | None = None, layout: str = "tp1", **options: object) -> list[Row]:
    figures = {"tokens_per_s_per_rank": speed, **({"mfu/datasheet": mfu} if mfu else {})}
    return trained(layout, figures, **LADDER, **options)


FULL = step(10_373, 0.54, compile=True, recompute="full", float8="none")
NONE = step(12_464, 0.649, compile=True, recompute="none", float8="none")
EIGHT = trained(
    "tp1",
    {"tokens_per_s_per_rank": 15_622, "mfu/datasheet": 0.406, "mfu/datasheet bfloat16": 0.813},
    **LADDER,
    compile=True,
    recompute="none",
    float8="tensorwise",
)


def test_the_answer_names_the_fastest_with_its_share_of_the_peak() -> None:
    chart = Ways()
    data = chart.select(of_rows([*FULL, *NONE, *EIGHT]))
    assert data is not None
    assert chart.answer(data) == (
        "The fastest of 3 ways to do a step of llama-8b with tp1 is tensorwise float8: 15,622 tokens/s per rank, "
        "81.3 % of bfloat16's peak (MFU, palm). The runner-up, plain, takes 25 % longer; the slowest, full recompute, "
        "51 %."
    )
    speed, share = chart.draw(data)
    assert speed.title == "Throughput per rank tp1"
    assert share.title == "MFU, of the datasheet's peak tp1"


def test_a_way_that_found_no_room_has_no_bar_and_says_so() -> None:
    chart = Ways()
    data = chart.select(of_rows([*FULL, *NONE, *EIGHT, *trained("tp1", status="out_of_memory", **LADDER)]))
    assert data is not None
    assert chart.answer(data).startswith("The fastest of 3 ways ")
    assert "× out of memory" in [text.get_text() for text in chart.draw(data)[0].figure.axes[0].texts]


def test_without_a_peak_there_is_no_panel_of_shares() -> None:
    rows = [*step(3.0, compile=True), *step(2.0, compile=False), *step(1.0, compile=False, loss_chunks=8)]
    chart = Ways()
    data = chart.select(of_rows(rows))
    assert data is not None
    assert len(chart.draw(data)) == 1
    assert "MFU" not in chart.answer(data)


def test_one_option_and_other_layouts_show_nothing() -> None:
    one_option = [*step(3.0, recompute="none"), *step(2.0, recompute="selective"), *step(1.0, recompute="full")]
    assert Ways().select(of_rows(one_option)) is None
    layouts = [row for layout in ("tp2", "dp2", "pp2") for row in step(1.0, layout=layout)]
    assert Ways().select(of_rows(layouts)) is None
    assert Ways().select(of_rows([*FULL, *NONE, *EIGHT, *layouts, *step(1.0, layout="cp2")])) is None


def test_shares_of_both_conventions_are_said_beside_the_bar() -> None:
    figures = {"tokens_per_s_per_rank": 3.0, "mfu/datasheet": 0.5}
    rows = [*trained("tp1", figures, **LADDER, compile=True), *FULL, *NONE]
    like = next(row for row in rows if row.metric == "mfu")
    rows.append(like._replace(value=0.54, detail={"flops_convention": "palm_6n", "peak": "datasheet"}))
    data = Ways().select(of_rows(rows))
    assert data is not None
    _, share = Ways().draw(data)
    assert [text.get_text() for text in share.figure.axes[0].texts] == ["64.9", "54", "50, ◇ 54"]


def test_of_many_the_fastest_twelve_are_bars_and_the_table_behind_them_has_all() -> None:
    many = [row for chunks in range(1, 15) for row in step(100.0 + chunks, 0.1, loss_chunks=chunks, compile=True)]
    chart = Ways()
    data = chart.select(of_rows([*many, *step(9.0, 0.05, compile=False), *trained("tp1", status="timeout", **LADDER)]))
    assert data is not None
    for panel in chart.draw(data):
        assert len(panel.figure.axes[0].get_yticks()) == 12
        assert panel.title.endswith("tp1 12 of 16, the fastest first")
        assert len(panel.entries) == 16
        assert [entry.area is None for entry in panel.entries] == [False] * 12 + [True] * 4
        assert panel.entries[-1].cells[-1] == "timeout"
    assert chart.left_out(data) == "Drawn are 12 of 16, the fastest first; 4 more are in the table behind the bars."


def test_of_two_that_samples_do_not_tell_apart_it_is_said_once() -> None:
    """It read 'Of the first two: they are not told apart: with 95 % confidence'."""
    times_s = [1.0, 1.2, 0.9, 1.1, 0.8, 1.3]
    rows = [*FULL, *NONE, *EIGHT]
    histories = [
        History(replace(case("tp1"), id=name), (), (observation(case("tp1"), [times_s] * 4),))
        for name in {row.case for row in rows}
    ]
    data = Ways().select(replace(of_rows(rows), histories=tuple(histories)))
    assert data is not None
    answer = Ways().answer(data)
    assert "51 %. The first two are not told apart: with 95 % confidence" in answer
    assert "hey are" not in answer
