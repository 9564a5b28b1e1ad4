from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.charts.batch_scaling import BatchScaling
from clusterbench.run_folder.attempts import History
from tests.charts.steps import trained
from tests.report.synthetic import case, observation, of_rows

Step = tuple[str, int, float]
"""Layout, sequences a step, and tokens per second and rank; none where it is 0."""


def run(*steps: Step, spread: float = 0.001) -> Reading:
    rows, histories = [], []
    for layout, batch, speed in steps:
        figures = {"tokens_per_s_per_rank": speed} if speed else None
        own = trained(layout, figures, status="out_of_memory", global_batch_size=batch)
        rows += own
        planned = case(layout, own[0].world_size, id=own[0].case)
        seconds = [[(1 + spread * (step % 5)) / (speed or 1.0) for step in range(20)]] * own[0].world_size
        histories.append(History(planned, observations=(observation(planned, seconds),) if speed else ()))
    return replace(of_rows(rows), histories=tuple(histories))


def answer(reading: Reading) -> str:
    data = BatchScaling().select(reading)
    assert data is not None
    return BatchScaling().answer(data)


FEW = ("dp4+zero3", 8, 100.0), ("dp4+zero2", 8, 99.0), ("pp4", 8, 50.0)


def test_the_fastest_is_named_at_each_batch_with_the_best_of_the_other_kind() -> None:
    many = ("dp4+zero3", 32, 100.0), ("dp4+zero2", 32, 102.0), ("pp4", 32, 125.0)
    assert answer(run(*FEW, *many)) == (
        "At 8 sequences a step dp4+zero3 is the fastest, pp4 takes 100 % longer; at 32 pp4 is the fastest, dp4+zero2 "
        "takes 23 % longer."
    )


def test_what_noise_hides_is_said_and_a_batch_without_both_kinds_is_left_out() -> None:
    near = ("dp4+zero3", 32, 100.0), ("pp4", 32, 101.0), ("dp4+zero3", 64, 100.0), ("pp4", 64, 0.0)
    assert answer(run(*FEW, *near, spread=0.1)).endswith(
        "; at 32 pp4 is the fastest, dp4+zero3 takes 1.0 % longer, which samples do not tell apart."
    )


def test_each_layout_is_a_curve_and_a_case_without_a_figure_a_cross() -> None:
    data = BatchScaling().select(run(*FEW, ("dp4+zero3", 32, 100.0), ("pp4", 32, 120.0), ("dp4+zero2", 32, 0.0)))
    assert data is not None
    (panel,) = BatchScaling().draw(data)
    assert [entry.cells[0] for entry in panel.entries] == [
        name for name in ("dp4+zero3", "dp4+zero2", "pp4") for _ in "12"
    ]
    assert "out of memory" in [text.get_text() for text in panel.figure.axes[0].texts]


def test_one_batch_one_kind_of_layout_and_very_many_layouts_are_for_other_charts() -> None:
    chart = BatchScaling()
    assert chart.select(run(*FEW)) is None
    assert chart.select(run(("pp4", 8, 1.0), ("pp4", 32, 1.0), ("pp2-dp2", 8, 1.0), ("pp2-dp2", 32, 1.0))) is None
    layouts = "dp4", "dp4+zero1", "dp4+zero2", "dp4+zero3", "tp4", "dp2-tp2", "pp4"
    assert chart.select(run(*((layout, batch, 1.0) for layout in layouts for batch in (8, 32)))) is None
