from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.charts.trainers import Trainers
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from tests.charts.steps import MIB, trained
from tests.report.synthetic import case, observation, of_rows

Run = tuple[str, str, float, float, float]
"""Layout, trainer, tokens per second and rank, MiB at the peak, and MiB sent along dp."""


def run(*steps: Run, spread: float = 0.001) -> Reading:
    rows: list[Row] = []
    histories = []
    for layout, trainer, speed, size, sent in steps:
        figures = {"tokens_per_s_per_rank": speed, "peak_memory/total": size * MIB, "traffic_bytes/dp": sent * MIB}
        options = {} if trainer == "ours" else {"trainer": trainer}
        own = trained(layout, figures, **options)
        rows += own
        planned = case(layout, own[0].world_size, id=own[0].case)
        seconds = [[(1 + spread * (step % 5)) / speed for step in range(20)]] * own[0].world_size
        histories.append(History(planned, observations=(observation(planned, seconds),)))
    return replace(of_rows(rows), histories=tuple(histories))


def answer(reading: Reading) -> str:
    data = Trainers().select(reading)
    assert data is not None
    return Trainers().answer(data)


STAGE_1 = ("dp2+zero1", "ours", 120.0, 10.0, 4.0), ("dp2+zero1", "deepspeed", 100.0, 13.0, 6.0)
STAGE_3 = ("dp2+zero3", "ours", 100.0, 10.0, 8.0), ("dp2+zero3", "deepspeed", 110.0, 9.0, 8.0)


def test_who_is_faster_is_named_with_where_it_is_so_most_and_what_each_holds() -> None:
    assert answer(run(*STAGE_1)) == (
        "Trainer ours is faster in 1 of 1 comparison, most in dp2+zero1, where deepspeed takes 20 % longer; at its "
        "peak deepspeed holds 1.30 times what ours holds, and deepspeed sends 1.50 times what ours sends."
    )
    assert answer(run(*STAGE_1, *STAGE_3)) == (
        "Trainer ours is faster in 1 of 2 comparisons, most in dp2+zero1, where deepspeed takes 20 % longer; trainer "
        "deepspeed is faster in 1 of 2 comparisons, most in dp2+zero3, where ours takes 10 % longer; at its peak "
        "deepspeed holds 0.90 to 1.30 times what ours holds, and deepspeed sends 1.00 to 1.50 times what ours sends."
    )


def test_what_samples_do_not_tell_apart_is_not_called_faster() -> None:
    assert answer(run(*STAGE_1, spread=0.5)).startswith(
        "In none of 1 comparison do samples tell one trainer from the other; at its peak deepspeed holds 1.30"
    )


def test_of_three_trainers_memory_is_left_to_the_bars() -> None:
    said = answer(run(*STAGE_1, *STAGE_3, ("dp2+zero3", "plain_ddp", 120.0, 20.0, 8.0)))
    assert said.endswith("where deepspeed takes 9.1 % longer.")


def test_bars_are_of_every_layout_and_trainer() -> None:
    data = Trainers().select(run(*STAGE_1, *STAGE_3))
    assert data is not None
    for panel in Trainers().draw(data):
        assert len(panel.entries) == 4
    assert len(Trainers().draw(data)) == 3


def test_one_trainer_shows_nothing() -> None:
    assert Trainers().select(run(STAGE_1[0], STAGE_3[0])) is None
    assert Trainers().select(run(STAGE_1[0], STAGE_3[1])) is None
