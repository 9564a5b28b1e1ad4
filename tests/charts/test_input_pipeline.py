from __future__ import annotations

from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.charts.input_pipeline import InputPipeline
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from tests.charts.steps import trained
from tests.report.synthetic import case, observation, of_rows

Run = tuple[str, float, float | None, float | None, str]
"""Layout, seconds of a step, of it waiting, of reading, and the folder that is read from."""


def run(*steps: Run, spread: float = 0.001) -> Reading:
    rows: list[Row] = []
    histories = []
    for layout, step_s, wait_s, read_s, path in steps:
        figures = {"tokens_per_s_per_rank": 1 / step_s, "step_time": step_s}
        figures |= {"token_wait": wait_s, "token_read": read_s} if wait_s is not None and read_s is not None else {}
        options = {"tokens": "read"} if wait_s is not None else {}
        own = trained(layout, figures, **options, **({"path": path} if path else {}))
        rows += own
        planned = case(layout, own[0].world_size, id=own[0].case)
        seconds = [[step_s * (1 + spread * (step % 5)) for step in range(20)]] * own[0].world_size
        histories.append(History(planned, observations=(observation(planned, seconds),)))
    return replace(of_rows(rows), histories=tuple(histories))


def answer(reading: Reading) -> str:
    data = InputPipeline().select(reading)
    assert data is not None
    return InputPipeline().answer(data)


RESIDENT: Run = ("dp2", 0.4, None, None, "")
QUICK: Run = ("dp2", 0.4, 0.0002, 0.01, "")
SLOW: Run = ("dp2", 0.5, 0.1, 0.5, "/slow")
BEHIND: Run = ("dp2", 2.0, 1.6, 1.99, "/slow")


def test_a_disk_that_keeps_up_costs_nothing_that_samples_tell() -> None:
    assert answer(run(RESIDENT, QUICK)) == (
        "A step of dp2 waits for the tokens that it reads: less than 0.1 % of its time; reading them takes 10 ms "
        "beside a step of 400 ms. Samples do not tell it from a step with the same batch in memory."
    )


def test_a_disk_that_does_not_keep_up_is_said_with_what_it_costs() -> None:
    assert answer(run(RESIDENT, BEHIND)) == (
        "A step of dp2, path /slow waits for the tokens that it reads: 80 % of its time; reading them takes 1.99 s "
        "beside a step of 2 s. It takes 400 % longer than a step with the same batch in memory."
    )


def test_of_several_disks_the_one_that_is_waited_for_most_is_named() -> None:
    assert answer(run(RESIDENT, QUICK, SLOW)) == (
        "Of 2 steps that read their tokens dp2, path /slow waits most for them: 20 % of its time; reading them takes "
        "500 ms beside a step of 500 ms. It takes 25 % longer than a step with the same batch in memory."
    )


def test_without_a_step_in_memory_there_is_still_what_is_waited() -> None:
    assert answer(run(QUICK)).endswith("reading them takes 10 ms beside a step of 400 ms.")
    assert answer(run(("dp2", 0.4, 0.1, 0.8, ""))).endswith("; reading them takes 800 ms, longer than a step.")


def test_bars_are_of_every_step_and_waits_of_those_that_read() -> None:
    data = InputPipeline().select(run(RESIDENT, QUICK, SLOW))
    assert data is not None
    assert [len(panel.entries) for panel in InputPipeline().draw(data)] == [3, 2, 2]


def test_steps_in_memory_alone_show_nothing() -> None:
    assert InputPipeline().select(run(RESIDENT)) is None
