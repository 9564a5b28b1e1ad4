from clusterbench.charts.tensor_scaling import TensorScaling
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row

MIB = 2**20


def step(layout: str, speed: float | None, memory: float | None = None, **options: object) -> list[Row]:
    planned = case(f"{layout} {options}", point={"shape": "tiny", "layout": layout, **options})
    if speed is None:
        return [row(planned, "", None, status="out_of_memory", basis="no room")]
    rows = [row(planned, "tokens_per_s_per_rank", speed, unit="tokens/s")]
    return rows + ([row(planned, "peak_memory", memory, unit="B", detail={"category": "total"})] if memory else [])


def answer(rows: list[Row]) -> str:
    data = TensorScaling().select(of_rows(rows))
    assert data is not None
    return TensorScaling().answer(data)


def test_the_answer_names_the_fall_and_the_saving() -> None:
    rows = [
        *step("tp1", 5120, 100 * MIB),
        *step("tp2", 2810, 60 * MIB),
        *step("tp4", 1630, 40 * MIB),
        *step("tp4+sp", 1490, 30 * MIB),
    ]
    assert answer(rows) == (
        "From tp1 to tp4 throughput per rank fell from 5,120 to 1,630 tokens/s (32 % of tp1, so "
        "4 ranks train 1.27 times as fast as 1); sequence parallelism "
        "lowered peak memory at tp4 by 25 %, from 40 to 30 MiB, and throughput by 8.6 %."
    )


def test_a_degree_between_that_trains_fastest_is_named() -> None:
    """Of 3 billion parameters on H100s tp4 trained faster than tp8, and the answer told of tp1 and tp8 alone."""
    rows = [*step("tp1", 20_000), *step("tp2", 15_000), *step("tp4", 11_000), *step("tp8", 5_000)]
    said = "(25 % of tp1, so 8 ranks train 2.00 times as fast as 1, and 4, the fastest, 2.20 times)."
    assert answer(rows).endswith(said)
    noisy = [row._replace(low=4_800.0, high=5_600.0) for row in step("tp8", 5_000)]
    assert answer([*rows[:3], *noisy]).endswith(", so 8 ranks train 2.00 times as fast as 1).")
    assert answer([*rows[:2], *step("tp8", 5_000)]).endswith(", so 8 ranks train 2.00 times as fast as 1).")


def test_what_sequence_parallelism_costs_stands_beside_what_it_saves() -> None:
    rows = [*step("tp1", 900), *step("tp2", 500, 40 * MIB), *step("tp2+sp", 450, 30 * MIB)]
    assert answer(rows).endswith("by 25 %, from 40 to 30 MiB, and throughput by 10 %.")
    rows = [*step("tp1", 900), *step("tp2", 500, 40 * MIB), *step("tp2+sp", 550, 30 * MIB)]
    assert answer(rows).endswith("by 25 %, from 40 to 30 MiB, and raised throughput by 10 %.")
    wide = [each._replace(low=400.0, high=520.0) if each.unit == "tokens/s" else each for each in rows[-2:]]
    assert answer([*rows[:-2], *wide]).endswith("by 25 %, from 40 to 30 MiB.")


def test_what_sequence_parallelism_saves_of_activations_is_said_at_each_degree() -> None:
    """sp_scale asks for activations at each degree, and was told the peak at the largest."""

    def held(layout: str, activations: float, speed: float = 500) -> list[Row]:
        rows = step(layout, speed, 40 * MIB)
        of = {"detail": {"category": "activations"}, "value": activations}
        return [*rows, rows[-1]._replace(**of)]

    rows = [*step("tp1", 900), *held("tp2", 10 * MIB), *held("tp2+sp", 8 * MIB), *held("tp4", 8 * MIB)]
    assert answer([*rows, *held("tp4+sp", 4 * MIB)]).endswith(
        "; sequence parallelism lowered peak activations by 20 % at tp2, 50 % at tp4, and left peak memory at tp4 as "
        "it was, at 40 MiB."
    )


def test_iterations_that_differ_much_stand_beside_their_figure() -> None:
    wide = [row._replace(low=row.value * 0.9, high=row.value * 1.1) for row in step("tp1", 2000) if row.value]
    assert answer([*wide, *step("tp2", 1500)]).startswith(
        "From tp1 to tp2 throughput per rank fell from 2,000 (1,800 to 2,200) to 1,500 tokens/s"
    )


def test_the_answer_names_the_degree_that_did_not_fit() -> None:
    rows = [*step("tp1", None), *step("tp2", 2000), *step("tp4", 1000)]
    assert answer(rows) == (
        "From tp2 to tp4 throughput per rank fell from 2,000 to 1,000 tokens/s (50 % of tp2, so "
        "4 ranks train as fast as 2; tp1: out of memory)."
    )


def test_a_case_without_a_figure_is_a_gap_and_not_nothing() -> None:
    (curve,) = TensorScaling().select(of_rows([*step("tp1", None), *step("tp2", 2000), *step("tp4", 1000)])) or []
    assert [(mark.x, mark.status) for mark in curve.throughput["TP"].marks] == [
        (1, "out_of_memory"),
        (2, "ok"),
        (4, "ok"),
    ]


def test_workloads_are_not_mixed() -> None:
    rows = [
        *step("tp1", 9, seq_len=256),
        *step("tp2", 8, seq_len=256),
        *step("tp1", 5, seq_len=512),
        *step("tp2", 4, seq_len=512),
    ]
    assert len(TensorScaling().select(of_rows(rows)) or []) == 2


def test_layouts_of_equal_ranks_are_one_curve() -> None:
    rows = [*step("dp4", 9), *step("dp2-tp2", 8), *step("tp4", 7)]
    (curve,) = TensorScaling().select(of_rows(rows)) or []
    assert [mark.value for mark in curve.throughput["TP"].marks] == [9, 8, 7]


def test_one_degree_alone_shows_nothing() -> None:
    assert TensorScaling().select(of_rows(step("tp2", 2000))) is None


def test_it_draws_throughput_and_memory_side_by_side() -> None:
    data = TensorScaling().select(of_rows([*step("tp1", 9, MIB), *step("tp2", 8, MIB)]))
    assert data is not None
    assert [figure.figure.axes[0].get_title(loc="left") for figure in TensorScaling().draw(data)] == [
        "Throughput per rank",
        "Peak memory per rank",
    ]


def test_an_option_that_only_some_layouts_have_does_not_split_a_curve() -> None:
    rows = [*step("tp1", 9, tp=1), *step("tp2", 8, tp=2, loss_parallel=True), *step("tp4", 7, tp=4, loss_parallel=True)]
    (curve,) = TensorScaling().select(of_rows(rows)) or []
    assert [mark.value for mark in curve.throughput["TP"].marks] == [9, 8, 7]


def test_of_several_workloads_the_answer_has_a_line_each() -> None:
    rows = [each for size in (8, 16) for of in (("tp1", 1000), ("tp2", 800)) for each in step(*of, seq_len=size)]
    for size, line in zip((8, 16), answer(rows).splitlines(), strict=True):
        assert line.startswith(f"seq len {size}: from tp1 to tp2 throughput per rank fell from 1,000 to 800 tokens/s")


def test_a_line_does_not_say_twice_where_it_begins() -> None:
    rows = [row for length in (8, 16) for tp in ("tp2", "tp4") for row in step(tp, 500, seq_len=length)]
    assert [line.partition(" throughput")[0] for line in answer(rows).splitlines()] == [
        "seq len 8: from tp2 to tp4",
        "seq len 16: from tp2 to tp4",
    ]


def test_a_degree_that_failed_in_one_of_two_cases_has_the_figure_of_the_other() -> None:
    """There was no panel where the first case had failed, and a page with a figure without one was not written."""
    failed = row(case("dp2 failed", point={"shape": "tiny", "layout": "dp2"}), "", None, status="wrong", basis="no")
    rows = [failed, *step("dp2", 900), *step("tp2", None)]
    data = TensorScaling().select(of_rows(rows))
    assert data is not None
    assert [panel.title for panel in TensorScaling().draw(data)] == ["Throughput per rank"]
