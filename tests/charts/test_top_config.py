import pytest
from matplotlib.text import Text

from clusterbench.charts.top_config import TopConfig
from clusterbench.drawing.panel import Entry, Panel
from clusterbench.drawing.style import LETTERS
from clusterbench.rows import Row
from tests.charts.steps import trained
from tests.report.synthetic import case, observation, of_rows, outcome, reading


def step(layout: str, speed: float | None, shape: str = "small", status: str = "ok", **options: object) -> list[Row]:
    figures = None if speed is None else {"tokens_per_s": speed}
    return trained(layout, figures, status=status, shape=shape, **options)


FOUR = [*step("dp4", 900), *step("tp4", 700), *step("pp4", 800), *step("dp2-tp2", None, status="failed")]
LARGE = [*step("dp4", None, "large", "out_of_memory"), *step("tp4", None, "large", "refused")]


def panel(rows: list[Row]) -> Panel:
    (drawn,) = TopConfig().draw(TopConfig().select(of_rows(rows)) or [])
    return drawn


def texts(rows: list[Row]) -> list[str]:
    return [text.get_text() for text in panel(rows).figure.axes[0].texts if text.get_text()]


def key(of: Panel) -> tuple[str, list[str]]:
    (legend,) = of.figure.legends
    return legend.get_title().get_text().replace("\n", " "), [text.get_text() for text in legend.get_texts()]


def entry(rows: list[Row], row: str, ranks: float) -> Entry:
    (mark,) = (mark for mark in panel(rows).entries if mark.cells[0] == row and ranks in mark.cells)
    return mark


def on_gpus(rows: list[Row], num_nodes: int) -> list[Row]:
    return [row._replace(device="cuda", num_nodes=num_nodes) for row in rows]


def test_the_answer_names_the_best_of_each_shape_and_what_is_missing() -> None:
    chart = TopConfig()
    data = chart.select(of_rows([*step("tp1", 300), *FOUR]))
    assert data is not None
    assert chart.answer(data) == "Fastest: small on 4 ranks with dp4 (900 tokens/s, best of 3)."
    assert chart.left_out(data) == "Of the 5 cases in these cells some have no figure: 1 failed."


def test_on_gpus_the_answer_tells_how_much_of_the_peak_that_is() -> None:
    """Of 512 layouts on H100s it told tokens a second of the best, and not whether that is much."""
    (speed,) = step("dp4", 900)
    share = {"flops_convention": "palm", "peak": "datasheet"}
    best = [speed, speed._replace(metric="mfu", unit="fraction", value=0.41, detail=share)]
    rows = on_gpus([*step("tp1", 300), *best, *FOUR[1:]], 1)
    assert TopConfig().answer(TopConfig().select(of_rows(rows)) or []) == (
        "Fastest: small on 4 GPUs with dp4 (900 tokens/s, MFU 41 %, best of 3)."
    )


def test_where_more_ranks_are_slower_the_answer_names_the_number_that_is_fastest() -> None:
    rows = [
        row for layout, speed in {"dp4": 900, "tp4": 700, "pp4": 800, "dp8": 600}.items() for row in step(layout, speed)
    ]
    assert TopConfig().answer(TopConfig().select(of_rows(rows)) or []) == (
        "Fastest: small on 4 ranks with dp4 (900 tokens/s, best of 3; 8 ranks reach 600 tokens/s)."
    )


def test_a_cell_names_its_configuration_or_how_its_cases_ended() -> None:
    assert texts([*FOUR, *LARGE]) == [
        "small",
        "DP4",
        "900\nkeeps 100 %",
        "best of 3\n× 1 failed",
        "large",
        "× 1 out of memory\n× 1 refused",
    ]


def test_what_was_not_tried_says_so() -> None:
    assert "not tried" in texts([*FOUR, *step("tp1", 300, "large")])
    assert entry([*FOUR, *step("tp1", 300, "large")], "large", 4).story is None


def test_only_degrees_in_use_stand_in_a_cell() -> None:
    batch = {"micro_batch_size": 2, "gradient_accumulation_steps": 8}
    rows = [*step("pp2-dp4-tp2+sp+ep2+zero1", 900, **batch), *step("dp16", 1), *step("tp16", 1), *step("pp16", 1)]
    assert texts([*rows, *step("tp1", 9)])[-3] == "DP4 TP2+SP PP2 EP2\nGAS 8 MBS 2 ZeRO-1"
    many = [*rows, *step("tp1", 9), *(row for power in range(1, 7) for row in step(f"dp{2**power}", 9))]
    assert texts(many)[-9] == "DP4\nTP2+SP\nPP2 EP2\nGAS 8\nMBS 2\nZeRO-1"


def test_layouts_tried_in_several_ways_are_no_heatmap() -> None:
    rows = [*FOUR, *step("tp1", 3), *trained("pp4", {"tokens_per_s": 9}, shape="small", schedule="zbv")]
    assert TopConfig().select(of_rows(rows)) is None


def test_degrees_of_one_parallelism_show_nothing() -> None:
    assert TopConfig().select(of_rows([*step("tp1", 9), *step("tp2", 8), *step("tp2+sp", 8), *step("tp4", 7)])) is None


# Columns and rows


def test_columns_are_ranks_where_all_ran_on_one_node() -> None:
    axes = panel([*FOUR, *step("tp1", 300)]).figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
    assert axes.get_xlabel() == "ranks"


def test_columns_are_nodes_where_several_counts_were_run() -> None:
    two = on_gpus([*step("dp8", 1700), *step("tp8", 900), *step("pp8", 1000)], num_nodes=2)
    rows = [*on_gpus(FOUR, num_nodes=1), *two]
    axes = panel(rows).figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1\n4 GPUs", "2\n8 GPUs"]
    assert axes.get_xlabel() == "nodes"
    assert entry(rows, "small", 8).cells[:4] == ("small", 2, 8, "dp8")
    story = entry(rows, "small", 8).story
    assert story is not None
    assert story.title == "small on 8 GPUs of 2 nodes"


def test_columns_are_ranks_where_a_node_count_has_several() -> None:
    rows = [*step("tp1", 300), *FOUR, *(row._replace(num_nodes=2) for row in step("dp8", 1700))]
    axes = panel(rows).figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "8"]


def test_rows_are_lengths_where_one_shape_was_run_with_several() -> None:
    def at(seq_len: int, global_batch_size: int) -> list[Row]:
        options = {"seq_len": seq_len, "global_batch_size": global_batch_size}
        layouts = {"dp4": 900, "tp4": 700, "pp4": 800, "tp1": 300}
        return [row for layout, speed in layouts.items() for row in step(layout, speed, **options)]

    rows = [*at(4096, 8), *at(8192, 4)]
    assert [text for text in texts(rows) if "tokens" in text] == ["4,096 tokens", "8,192 tokens"]
    assert panel(rows).title == "Fastest configuration, tokens/s, small"
    story = entry(rows, "8,192 tokens", 4).story
    assert story is not None
    assert story.title == "small, sequences of 8,192 tokens, on 4 ranks"
    assert TopConfig().answer(TopConfig().select(of_rows(rows)) or []) == (
        "Fastest: small, sequences of 4,096 tokens, on 4 ranks with dp4 (900 tokens/s, best of 3); small, sequences "
        "of 8,192 tokens, on 4 ranks with dp4 (900 tokens/s, best of 3)."
    )


def test_several_shapes_with_one_length_each_are_rows_of_their_own_batch() -> None:
    rows = [row for batch in (8, 16) for row in [*step("tp1", 3, seq_len=64, global_batch_size=batch)]]
    rows += [row for batch in (8, 16) for name in ("dp4", "tp4", "pp4")
             for row in step(name, 9, seq_len=64, global_batch_size=batch)]  # fmt: skip
    titles = [drawn.title for drawn in TopConfig().draw(TopConfig().select(of_rows(rows)) or [])]
    assert titles == [f"Fastest configuration, tokens/s, {batch} sequences of 64 tokens a step" for batch in (8, 16)]


def test_a_refusal_counts_once_and_not_where_the_same_ran_with_other_nodes() -> None:
    refused = step("cp4", None, status="refused")
    again = [row._replace(case="elsewhere", num_nodes=2) for row in refused]
    of_another = [row._replace(case="dp4 on 2 nodes", num_nodes=2) for row in step("dp4", None, status="refused")]
    too_large = step("dp4-tp4", None, status="refused")
    rows = [*FOUR, *step("tp1", 300), *refused, *again, *of_another, *too_large]
    assert "best of 3\n× 1 failed\n× 1 refused" in texts(rows)
    assert [label.get_text() for label in panel(rows).figure.axes[0].get_xticklabels()] == ["1", "4"]
    assert TopConfig().left_out(TopConfig().select(of_rows(rows)) or []) == (
        "Not drawn: 1 refused for numbers of ranks on which nothing was to run. "
        "Of the 6 cases in these cells some have no figure: 1 failed, 1 refused."
    )


# Colour


def test_the_colour_is_the_throughput_kept_where_no_mfu_is_known() -> None:
    rows = [*FOUR, *step("tp1", 300), *LARGE, *step("tp2", 500)]
    assert key(panel(rows)) == (
        "Colour: throughput per rank, of what the row's smallest size reaches; an MFU is not known of every cell",
        ["25 %", "50 %", "75 %", "100 %", "no figure", "not tried"],
    )
    assert "300\nkeeps 100 %" in texts(rows)
    assert "900\nkeeps 75 %" in texts(rows)
    assert entry(rows, "small", 4).cells[4:6] == (0.75, pytest.approx(0.125))


def test_the_smallest_size_keeps_all_where_a_larger_one_has_more_of_each_rank() -> None:
    """Page review A11: one rank kept 74 %, because two had more than twice its throughput."""
    rows = [*FOUR, *step("tp1", 200)]
    assert "200\nkeeps 100 %" in texts(rows)
    assert "900\nkeeps 112 %" in texts(rows)


def counted(layout: str, speed: float, **mfu: float) -> list[Row]:
    return trained(
        layout, {"tokens_per_s": speed, **{f"mfu/{peak}": share for peak, share in mfu.items()}}, shape="small"
    )


def test_the_colour_is_mfu_and_the_key_says_how_it_is_counted() -> None:
    rows = [
        *counted("dp4", 900, measured=0.5, datasheet=0.40),
        *counted("tp4", 700, datasheet=0.31),
        *counted("pp4", 800, datasheet=0.45),
        *counted("tp1", 300, measured=0.6, datasheet=0.20),
    ]
    assert key(panel(rows)) == (
        "Colour: MFU (palm convention, peak of the datasheet)",
        ["10 %", "20 %", "30 %", "40 %"],
    )
    assert {"900\nMFU 40 %", "300\nMFU 20 %"} <= {*texts(rows)}
    story = entry(rows, "small", 4).story
    assert story is not None
    assert story.sentences[0] == (
        "The fastest is dp4: 900 tokens/s, 225 tokens/s per rank, MFU 40 % (palm convention, peak of the datasheet)."
    )


def test_two_ways_to_count_mfu_are_never_mixed() -> None:
    rows = [
        *counted("dp4", 900, measured=0.5),
        *counted("tp4", 700, measured=0.4),
        *counted("pp4", 800, measured=0.4),
        *counted("tp1", 300, datasheet=0.20),
    ]
    assert key(panel(rows))[0].startswith("Colour: throughput per rank")


def test_the_colour_of_a_cpu_is_mfu_by_its_own_matmul_where_all_have_it() -> None:
    rows = [*counted("dp4", 900, measured=0.5), *counted("tp1", 300, measured=0.6)]
    rows += [*counted("tp4", 700, measured=0.4), *counted("pp4", 800, measured=0.4)]
    assert key(panel(rows))[0] == "Colour: MFU (palm convention, peak as a matmul reached it here)"


# Micro-batches, attempts and imports


def tried(layout: str, micro: int, speed: float | None, mfu: float | None = None, **options: object) -> list[Row]:
    figures = {} if speed is None else {"tokens_per_s": speed}
    rows = trained(layout, figures, shape="small", micro_batch_size=micro, **options)
    if mfu is None:
        return rows
    as_printed = rows[0]._replace(metric="mfu", unit="fraction", value=mfu, detail={"source": "imported"})
    ratio = rows[0]._replace(metric="mfu_over_recomputed", value=1.2 if "pp" in layout else 1.0)
    return [*rows, as_printed, ratio]


def test_micro_batches_are_chosen_together_with_the_layout() -> None:
    rows = [*tried("dp4", 1, 900), *tried("dp4", 2, 950), *tried("tp4", 1, 700), *tried("pp4", 1, 800)]
    assert [text for text in texts([*rows, *tried("tp1", 1, 300)]) if "keeps" not in text] == [
        "small",
        "1 rank\nMBS 1",
        "best of 1",
        "DP4\nMBS 2",
        "best of 4",
    ]


def test_the_best_of_several_attempts_counts_and_a_tie_makes_no_cell_taller() -> None:
    rows = [
        *tried("dp4", 1, 900, attempt=1),
        *tried("dp4", 1, 950, attempt=2),
        *tried("tp4", 1, 950, attempt=1),
        *tried("pp4", 1, 800, attempt=1),
        *tried("tp1", 1, 300, attempt=1),
    ]
    assert "DP4\nMBS 1\nor 1 as fast" in texts(rows)
    assert entry(rows, "small", 4).cells[2] == "dp4, MBS 1 or tp4, MBS 1"
    assert TopConfig().answer(TopConfig().select(of_rows(rows)) or []) == (
        "Fastest: small on 4 ranks with dp4 or tp4 (950 tokens/s, best of 4)."
    )


def test_all_cells_are_equally_large() -> None:
    large = [*step("dp2-tp2", 900, "large", zero_stage=1), *step("tp4", 900, "large"), *step("pp4", 800, "large")]
    cells = panel([*FOUR, *step("tp1", 300), *large]).figure.axes[0].patches
    assert len({round(abs(cell.get_height()), 9) for cell in cells}) == 1
    assert len(cells) == 4


def test_an_imported_mfu_that_would_choose_otherwise_is_shown_with_the_reason() -> None:
    rows = [
        *tried("dp4", 1, 900, 0.40),
        *tried("tp4", 1, 700, 0.31),
        *tried("pp4", 1, 800, 0.45),
        *tried("tp1", 1, 300, 0.50),
    ]
    chart = TopConfig()
    data = chart.select(of_rows(rows)) or []
    speed, mfu = chart.draw(data)
    assert key(speed)[0] == key(mfu)[0] == "Colour: MFU (as imported)"
    assert "DP4\nMBS 1" in [text.get_text() for text in speed.figure.axes[0].texts]
    assert [text.get_text() for text in mfu.figure.axes[0].texts] == [
        "small",
        "1 rank\nMBS 1",
        "MFU 50 %",
        "best of 1",
        "PP4\nMBS 1",
        "MFU 45 %",
        "best of 3",
    ]
    story = mfu.entries[1].story
    assert story is not None
    assert story.title == "small on 4 ranks, by imported MFU"
    assert story.sentences[1] == "By tokens/s the fastest is dp4, MBS 1."
    assert chart.answer(data) == "Fastest: small on 4 ranks with dp4 (900 tokens/s, best of 3)."
    assert chart.left_out(data) == (
        "Ranked by the imported MFU instead, 1 of 2 cells name another layout or micro-batch. The imported MFU does "
        "not follow from throughput alone: over the MFU recomputed from it, it is 1.200 for small with pp > 1, and "
        "1.00 for all others."
    )


# From a run


def test_the_samples_of_a_run_say_whether_the_margin_is_noise() -> None:
    speeds = {"dp4": 1.00, "tp4": 1.01, "pp4": 2.0, "tp1": 3.0}
    cases = {name: case(name, 1 if name == "tp1" else 4, point={"layout": name, "shape": "small"}) for name in speeds}
    noise = [0.97, 0.98, 0.99, 1.00, 1.01, 1.02, 1.03]
    records = [
        (outcome(of), observation(of, [[speeds[name] * each for each in noise]] * of.world_size))
        for name, of in cases.items()
    ]
    rows = [row._replace(case=cases[name].id) for name, time in speeds.items() for row in step(name, 100 / time)]
    data = TopConfig().select(reading(*records, cases=list(cases.values()), rows=rows))
    (drawn,) = TopConfig().draw(data or [])
    (mark,) = (mark for mark in drawn.entries if 4.0 in mark.cells)
    assert mark.cells[5] == pytest.approx(0.01)
    assert mark.story is not None
    assert mark.story.sentences[1].startswith(
        "The runner-up, tp4, takes 1.0 % longer for a step. They are not told apart: "
    )
    assert mark.story.cases == ("planted/1n4/dp4", "planted/1n4/tp4", "planted/1n4/pp4")


def test_a_hostile_point_is_cut_and_never_raises() -> None:
    evil = "<script>" + "x" * 1_000_000
    options = {"shape": evil, "seq_len": evil, "global_batch_size": ["x"], "micro_batch_size": {"x": 1}, "seed": [1]}
    rows = [row for name in ("dp4", "tp4", "pp4", "tp1") for row in trained(name, {"tokens_per_s": 9}, **options)]
    (drawn,) = TopConfig().draw(TopConfig().select(of_rows(rows)) or [])
    story = drawn.entries[0].story
    assert story is not None
    assert len(story.title) < 100
    assert max(len(cell) for mark in drawn.entries for cell in mark.cells if isinstance(cell, str)) < 100


def test_the_words_of_a_cell_are_as_large_as_others_and_stay_inside() -> None:
    batch = {"gradient_accumulation_steps": 256, "micro_batch_size": 1}
    rows = [row for power in range(1, 9) for row in step(f"dp{2**power}", 6_086_400, **batch)]
    rows += [*step("pp4-dp32-tp2+sp+zero1", 6_086_401, **batch), *step("tp4", None, status="out_of_memory", **batch)]
    figure = panel([*rows, *step("pp4", 9, **batch), *step("dp2-tp2", 8, **batch)]).figure
    figure.draw_without_rendering()
    axes = figure.axes[0]
    wide = axes.get_window_extent().width / 8
    words = [text for text in axes.texts if text.get_text()]
    assert all(text.get_fontsize() >= LETTERS for text in figure.findobj(Text) if text.get_text())
    assert all(text.get_window_extent().width <= wide for text in words[1:])
    assert min(text.get_window_extent().y0 for text in words[1:]) >= axes.get_window_extent().y0
