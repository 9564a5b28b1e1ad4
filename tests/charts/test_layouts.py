from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.charts.layouts import Layouts
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from tests.charts.steps import trained
from tests.report.synthetic import case, observation, of_rows


def step(layout: str, speed: float, **options: object) -> list[Row]:
    return trained(layout, {"tokens_per_s_per_rank": speed, "parity_loss": 1e-7}, **options)


ROWS = [*step("dp4", 900), *step("dp2-tp2", 500), *step("pp4", 300, schedule="zbv")]


def test_the_answer_says_what_was_proved_and_which_is_fastest() -> None:
    chart = Layouts()
    data = chart.select(of_rows(ROWS))
    assert data is not None
    assert chart.answer(data) == (
        "All 3 cases compute what one rank computes; the fastest of 3 for tiny on 4 ranks is dp4, with 900 tokens/s "
        "per rank; the runner-up, dp2-tp2, takes 80 % longer for a step."
    )


def test_a_wrong_layout_is_counted_and_has_no_bar() -> None:
    chart = Layouts()
    data = chart.select(of_rows([*ROWS, *trained("cp4", status="wrong", context="ring")]))
    assert data is not None
    assert chart.answer(data).startswith("3 of 4 cases compute what one rank computes, 1 did not;")
    (figure,) = chart.draw(data)
    assert "× wrong" in [text.get_text() for text in figure.figure.axes[0].texts]


def test_layouts_that_ran_without_a_proof_are_not_said_to_compute_the_same() -> None:
    """Nor are those of which one comparison is in the record and others are not: the verdict calls them not proven."""
    read = of_rows(ROWS)
    bare = case("pp4", 4, layout="pp4", id=ROWS[-1].case, benchmark="train_step", point={"parity": False})
    read = replace(read, histories=(History(bare, observations=(observation(bare, [[1.0]] * 4),)),))
    chart = Layouts()
    data = chart.select(read)
    assert data is not None
    assert chart.answer(data).startswith("2 of 3 cases compute what one rank computes, 1 ran without that proof;")


def test_numbers_of_ranks_are_panels_of_their_own() -> None:
    more = [*step("dp8", 9), *step("tp8", 8), *step("dp4-tp2", 7)]
    assert len(Layouts().draw(Layouts().select(of_rows([*ROWS, *more])) or [])) == 2


def test_degrees_of_one_parallelism_show_nothing() -> None:
    assert Layouts().select(of_rows([*step("tp4", 9), *step("tp4+sp", 8), *step("tp2", 8)])) is None


def test_a_layout_that_was_cut_short_is_not_said_to_be_wrong() -> None:
    chart = Layouts()
    data = chart.select(of_rows([*ROWS, *trained("cp4", status="timeout", context="ring")]))
    assert data is not None
    assert chart.answer(data).startswith("3 of 4 cases compute what one rank computes, 1 ended before that was known;")


def test_a_layout_that_has_not_run_yet_has_not_ended() -> None:
    """Of a run that its time limit ended the page said '4 not run yet' and '4 ended before that was known'."""
    chart = Layouts()
    data = chart.select(of_rows([*ROWS, *trained("cp4", status="not_run", context="ring")]))
    assert data is not None
    assert chart.answer(data).startswith("3 of 4 cases compute what one rank computes, 1 has not run yet;")


def test_layouts_too_few_to_rank_are_counted_below_the_chart() -> None:
    chart = Layouts()
    data = chart.select(of_rows([*ROWS, *step("dp8", 9)]))
    assert data is not None
    assert chart.left_out(data) == "Not drawn: 1 layout, too few of its workload and number of ranks to rank."


def test_of_many_the_best_twelve_are_bars_and_the_table_behind_them_has_all() -> None:
    many = [row for size in range(1, 15) for row in step("dp2-tp2", size, micro_batch_size=size)]
    chart = Layouts()
    data = chart.select(of_rows([*step("dp4", 900), *step("pp4", 800), *many, *trained("cp4", status="timeout")]))
    assert data is not None
    (panel,) = chart.draw(data)
    assert len(panel.figure.axes[0].get_yticks()) == 12
    assert panel.title == "Throughput per rank on 4 ranks 12 of 17, the best first"
    assert [entry.cells[1] for entry in panel.entries] == [900, 800, *range(14, 0, -1), None]
    assert panel.entries[-1].cells[2] == "timeout"
    assert chart.left_out(data) == "Drawn are 12 of 17, the best first; 5 more are in the table behind the bars."


def test_on_gpus_the_answer_tells_how_much_of_the_peak_that_is() -> None:
    of = {"parity_loss": 1e-7, "mfu/datasheet": 0.412}
    rows = [*trained("dp4", {"tokens_per_s_per_rank": 9, **of}), *step("cp4", 8), *step("tp4", 7)]
    data = Layouts().select(of_rows(rows))
    assert data is not None
    assert "is dp4, with 9 tokens/s per rank, 41.2 % of the peak (MFU, palm); the runner-up" in Layouts().answer(data)


def test_of_two_runs_cases_are_counted_and_the_run_is_named_as_one() -> None:
    """Of 3 layouts in runs a and b the answer said 'All 6 layouts', and 'the fastest of 3 for tiny, a on 4 ranks'."""
    rows = [row for run in "ab" for name in ("dp4", "cp4", "tp4") for row in step(name, 9 + ord(run), run=run)]
    data = Layouts().select(of_rows(rows))
    assert data is not None
    assert (
        Layouts()
        .answer(data)
        .startswith(
            "All 6 cases compute what one rank computes; the fastest of 3 for tiny, run a on 4 ranks are dp4, cp4, tp4"
        )
    )


def test_bars_do_not_say_what_all_of_them_share() -> None:
    """``zigzag`` and ``selective recompute`` stood at each of 512 bars, and told none from another."""
    shared = {"recompute": "selective"}
    rows = [*step("dp4", 9, **shared), *step("cp4", 8, **shared, context="zigzag"), *step("tp4", 7, **shared)]
    chart, data = Layouts(), Layouts().select(of_rows(rows))
    assert data is not None
    (panel,) = chart.draw(data)
    assert [entry.cells[0] for entry in panel.entries] == ["dp4", "cp4", "tp4"]
    differing = [*rows, *step("dp4", 5, recompute="full"), *step("cp4", 4, **shared, context="ulysses")]
    (panel,) = chart.draw(chart.select(of_rows(differing)) or data)
    assert [entry.cells[0] for entry in panel.entries] == [
        "dp4, selective recompute",
        "cp4, selective recompute, zigzag",
        "tp4, selective recompute",
        "dp4, full recompute",
        "cp4, selective recompute, ulysses",
    ]


def test_layouts_that_tie_are_named_together() -> None:
    chart = Layouts()
    data = chart.select(of_rows([*step("dp4", 900), *step("dp2-tp2", 900), *step("pp4", 300)]))
    assert data is not None
    assert "are dp4, dp2-tp2, with 900 tokens/s per rank; the runner-up, pp4, takes 200 %" in (chart.answer(data))


def sampled(rows: list[Row], seconds: dict[str, list[float]]) -> Reading:
    """``seconds`` are those of each iteration, by layout."""
    of = {row.case: str(row.point["layout"]) for row in rows}
    histories = [
        History(replace(case(layout), id=name), (), (observation(case(layout), [seconds[layout]] * 4),))
        for name, layout in of.items()
    ]
    return replace(of_rows(rows), histories=tuple(histories))


def test_a_margin_that_samples_do_not_tell_from_noise_is_said_to_be_none() -> None:
    rows = [*step("dp4", 900), *step("dp2-tp2", 890), *step("pp4", 300)]
    noisy, steady = [1.0, 1.2, 0.9, 1.1, 0.8, 1.3], [0.5, 0.501, 0.5, 0.499, 0.5, 0.5]
    chart = Layouts()
    for first, is_told_apart in ((noisy, False), (steady, True)):
        data = chart.select(sampled(rows, {"dp4": first, "dp2-tp2": noisy, "pp4": noisy}))
        assert data is not None
        assert ("They are not told apart" in chart.answer(data)) != is_told_apart


def test_of_several_workloads_the_answer_names_the_one_it_is_about() -> None:
    rows = [each for size in (8, 16) for of in (("dp4", 9), ("tp4", 8), ("pp4", 7)) for each in step(*of, seq_len=size)]
    data = Layouts().select(of_rows(rows))
    assert data is not None
    assert "; the fastest of 3 for tiny, seq len 8 on 4 ranks is dp4," in Layouts().answer(data)
