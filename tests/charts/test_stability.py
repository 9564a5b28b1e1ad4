"""Iterations in order of time: what interrupts them, what makes them drift, and silence about steady cases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterbench.cases import Reading
from clusterbench.charts.stability import MOST, MOST_OUTLIERS, MOST_POINTS, Courses, Stability
from clusterbench.derive import read as read_run
from clusterbench.drawing.svg import svg
from clusterbench.formulas.statistics import UNSTABLE_CV
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.types import Case
from tests.report.synthetic import case, good_run, observation, outcome, plant, row
from tests.report.synthetic import reading as read


def steady(world_size: int = 4, count: int = 20) -> list[list[float]]:
    return [[0.0100 + 0.0001 * ((number + rank) % 3) for number in range(count)] for rank in range(world_size)]


def interrupted(count: int = 20, rank: int = 3, every: int = 5) -> list[list[float]]:
    seconds = steady(count=count)
    seconds[rank] = [0.03 if number % every == 2 else time_s for number, time_s in enumerate(seconds[rank])]
    return seconds


def drifting(percent: float, count: int = 40) -> list[list[float]]:
    return [[0.01 * (1 + percent / 100 * number / count) for number in range(count)]] * 4


def reading(*cases: tuple[Case, Sequence[Sequence[Sequence[float]]]]) -> Reading:
    """Each case with the samples of its repeats."""
    records = [
        (outcome(planned, repeat=repeat), observation(planned, seconds, repeat=repeat, hosts=("a", "b")))
        for planned, repeats in cases
        for repeat, seconds in enumerate(repeats)
    ]
    planned = [planned for planned, _ in cases]
    histories = read(*records, cases=planned).histories
    measures = [measure for history in histories for measure in _measures(history)]
    return read(*records, cases=planned, rows=[*map(row, planned), *measures])


def _measures(history: History) -> list[Row]:
    """What derive says of how far the iterations of a case differ."""
    spread = history.spread
    assert spread is not None
    limits = {"time_cv": (spread.cv, UNSTABLE_CV), "time_max_over_median": (spread.max_over_median, 1.5)}
    return [
        row(history.case, metric, value, expected=limit, iterations=spread.num_iterations)
        for metric, (value, limit) in limits.items()
    ]


def courses(*cases: tuple[Case, Sequence[Sequence[Sequence[float]]]]) -> Courses:
    data = Stability().select(reading(*cases))
    assert data is not None
    return data


def test_steady_cases_are_said_to_be_and_the_main_one_is_drawn() -> None:
    data = courses((case("a"), [steady()]), (case("b"), [steady()]))
    assert Stability().answer(data) == (
        "All cases are steady: no coefficient of variation is above 5 %, and no case drifts."
    )
    assert [course.steadiness.case for course in data.drawn] == ["planted/1n4/a"]
    assert Stability().left_out(data) == ""


def test_an_interrupted_case_is_named_with_the_rank_that_was_last_each_time() -> None:
    data = courses((case("a"), [steady()]), (case("b"), [interrupted()]))
    assert [course.steadiness.case for course in data.drawn] == ["planted/1n4/b", "planted/1n4/a"]
    assert Stability().answer(data) == (
        "1 of 2 cases is unsteady. planted/1n4/b differs most: a coefficient of variation of 57 % over 20 iterations; "
        "the slowest takes 2.94 times the median, when rank 3 on b was last; that rank is the last in all 4 above 1.5 "
        "times the median."
    )


def test_a_drift_is_named_with_its_direction() -> None:
    for percent, said in ((30.0, "the last fifth takes 23 % longer than the first"), (-30.0, "takes 25 % less than")):
        data = courses((case("a"), [drifting(percent)]))
        assert said in Stability().answer(data)
        (subtitle,) = Stability().draw(data)[0].figure.axes[0].texts  # words over the points would hide them
        assert re.search(r", last fifth [+-]2\d %$", subtitle.get_text())


@pytest.mark.parametrize("percent", [0.0, 4.0])
def test_a_small_drift_is_none(percent: float) -> None:
    (course,) = courses((case("a"), [drifting(percent)])).drawn
    assert course.steadiness.drift is None
    assert not course.steadiness.stands_out


def test_noise_is_no_drift() -> None:
    # The fifths have medians of 10 and 12, and hold the same times.
    times = [0.010, 0.012, 0.010, 0.012, 0.010, 0.012, 0.010, 0.010] * 4 + [0.012, 0.010] * 4
    (course,) = courses((case("a"), [[times] * 4])).drawn
    assert course.steadiness.drift is None


def test_repeats_that_differ_are_said_to() -> None:
    data = courses((case("a", repeats=2), [[[0.010] * 5] * 4, [[0.020] * 5] * 4]))
    assert "the medians of its repeats lie between 10 and 20 ms" in Stability().answer(data)


def test_every_iteration_is_a_point_that_says_who_was_slowest() -> None:
    planned = case("b", repeats=2)
    (panel,) = Stability().draw(courses((planned, [steady(), interrupted(every=20)])))
    assert len(panel.entries) == 40
    assert panel.words(panel.entries[0]) == (
        "repeat 2, iteration 3; time 30.000 ms; rank 3; b; above 1.5 times the median"
    )
    assert {entry.case for entry in panel.entries} == {planned.id}
    assert [label.get_text() for label in panel.figure.axes[0].get_xticklabels()] == ["repeat 1", "repeat 2"]


def test_of_many_iterations_some_stand_for_their_neighbours_and_outliers_stay() -> None:
    data = courses((case("a"), [interrupted(5000, every=100)]))
    (panel,) = Stability().draw(data)
    notes = [str(entry.cells[-1]) for entry in panel.entries]
    assert notes.count("above 1.5 times the median") == 50
    assert len(panel.entries) <= MOST_POINTS + MOST_OUTLIERS


def test_what_is_far_above_stands_at_the_edge_with_its_time() -> None:
    seconds = steady(count=40)
    seconds[0][7] = 9.0
    (panel,) = Stability().draw(courses((case("a"), [seconds])))
    (axes,) = panel.figure.axes
    assert "rank 0, 9.000 s" in [text.get_text() for text in axes.texts]
    assert axes.get_ylim()[1] < 50
    (arrow,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert list(arrow.get_xydata()[0]) == [8, axes.get_ylim()[1]]


def test_what_is_said_of_outliers_does_not_overlap() -> None:
    seconds = steady(count=40)
    for number in (7, 8, 20):
        seconds[0][number] = 9.0
    (panel,) = Stability().draw(courses((case("a"), [seconds])))
    places = [text.xy[0] for text in panel.figure.axes[0].texts if text.get_text().startswith("rank 0")]
    assert places == [9, 21]


def test_of_many_unsteady_cases_the_worst_are_drawn_and_the_rest_counted() -> None:
    data = courses(*((case(str(number)), [interrupted(every=3 + number % 4)]) for number in range(20)))
    assert len(data.drawn) == MOST
    assert Stability().left_out(data) == "Drawn are the first 6 of 20 unsteady cases; all are in the table of cases."


def test_a_few_iterations_say_nothing() -> None:
    assert Stability().select(reading((case("a"), [[[0.1]] * 4]))) is None
    assert Stability().select(reading((case("a"), [[[0.1, 0.2]] * 4]))) is None
    assert Stability().select(read(cases=[case("a")])) is None


def test_what_is_unsteady_is_what_the_verdict_calls_so() -> None:
    three, drifts = [[0.010, 0.020, 0.010]] * 4, [[0.010 * 1.003**number for number in range(24)]] * 4
    cases = (case("a"), [three]), (case("b"), [drifts]), (case("c"), [steady()]), (case("d"), [[[0.01]] * 4])
    assert reading(*cases).unsteady == {"planted/1n4/a"}
    data = courses(*cases)
    assert (data.num_unsteady, data.num_drifting, data.num_cases) == (1, 1, 4)
    assert Stability().answer(data).startswith("1 of 4 cases is unsteady, and 1 more drifts. planted/1n4/a differs")
    data = courses((case("b"), [drifts]), (case("c"), [steady()]))
    assert Stability().answer(data).startswith("No case is unsteady; 1 of 2 cases drifts. planted/1n4/b differs most")
    data = courses((case("c"), [steady()]), (case("d"), [[[0.01]] * 4]))
    assert Stability().answer(data).startswith("All cases of 3 iterations or more are steady: ")


def test_the_fastest_training_and_the_largest_message_are_the_main_cases() -> None:
    slow, fast = (case(name, id=f"train_step/{name}", benchmark="train_step") for name in ("slow", "fast"))
    small, large = (
        case(f"{size}", id=f"all_reduce/{size}", benchmark="all_reduce", point={"size_bytes": size})
        for size in (8, 1024)
    )
    rows = [row(slow, "tokens_per_s", 1.0), row(fast, "tokens_per_s", 2.0), row(large), row(small)]
    every = [slow, fast, small, large]
    found = read(*((outcome(planned), observation(planned, steady())) for planned in every), cases=every, rows=rows)
    data = Stability().select(found)
    assert data is not None
    assert [course.steadiness.case for course in data.drawn] == ["train_step/fast", "all_reduce/1024"]


def test_hostile_names_and_extreme_times_are_drawn_as_text(tmp_path: Path) -> None:
    undo = plant()
    try:
        names = ['<script>alert("x")</script>$\\frac$', "\x1b[31m" + "x" * 100_000]
        first, second = (case(str(number), id=name) for number, name in enumerate(names))
        run = good_run(tmp_path / "run", (first, second))
        run.record(outcome(first, repeat=1), observation(first, [[1e-12, 1e9] * 20] * 4, repeat=1, hosts=(names[1],)))
        run.record(outcome(second, repeat=2), observation(second, [[float("nan")] * 3] * 4, repeat=2))
        found = read_run(run)
        data = Stability().select(found)
        assert data is not None
        drawn = "".join(svg(panel, f"n-{number}", "l") for number, panel in enumerate(Stability().draw(data)))
        assert "<script>" not in drawn
        assert "\x1b" not in drawn + Stability().answer(data)
        assert len(drawn) < 200_000
    finally:
        undo()
