"""The timeline shows every place of the pipeline once, as its ranks measured it, above the schedule as it is played."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.charts.timeline import WAITING, Step, Timeline
from clusterbench.drawing.svg import svg
from clusterbench.formulas.schedules import order
from clusterbench.formulas.schedules.timeline import play
from tests.report.synthetic import case, observation, outcome, row
from tests.report.synthetic import reading as read

FIRST = [["F", 0, 0, 0.0, 0.1], ["B", 0, 0, 0.3, 0.5]]
SECOND = [["F", 1, 0, 0.1, 0.2], ["B", 1, 0, 0.2, 0.3]]


def reading(*timelines: object, layout: str = "pp2", schedule: object = "gpipe") -> Reading:
    piped = case(layout, point={"layout": layout, "schedule": schedule})
    seen = replace(observation(piped), passes={"timeline": timelines})
    return read((outcome(piped), seen), cases=[piped], rows=[row(piped)])


def one_step(*timelines: object, **options: Any) -> Step:
    (step,) = Timeline().select(reading(*timelines, **options)) or []
    return step


def timelines_of(
    schedule: str, ranks: int, microbatches: int, chunks: int, send_s: float = 0.0
) -> list[list[list[Any]]]:
    """What ranks would record that take 10 ms forward, 10 for each half of backward, and so long for a message."""
    played = play(order(schedule, ranks, microbatches, chunks), {"F": 0.01, "B": 0.02, "I": 0.01, "W": 0.01}, send_s)
    return [[[*computed.action, computed.start_s, computed.end_s] for computed in rank] for rank in played.ranks]


def test_each_place_is_a_line_and_each_action_a_box() -> None:
    step = one_step(FIRST, SECOND)
    assert step.name == "pp2, gpipe"
    assert step.lines == ("stage 0", "stage 1", "", "stage 0, simulated", "stage 1, simulated")
    assert [(span.line, span.kind, span.start_s) for span in step.spans if span.line < 2 and span.kind != WAITING] == [
        (0, "F", 0.0),
        (0, "B", 0.3),
        (1, "F", 0.1),
        (1, "B", 0.2),
    ]


def test_waiting_is_what_lies_before_between_and_after_the_actions() -> None:
    waits = [span for span in one_step(FIRST, SECOND).spans if span.line < 2 and span.kind == WAITING]
    assert [(span.line, span.start_s, span.end_s) for span in waits] == [(0, 0.1, 0.3), (1, 0.0, 0.1), (1, 0.3, 0.5)]


def test_ranks_of_one_place_are_drawn_once() -> None:
    assert one_step(FIRST, FIRST, SECOND, SECOND).lines == one_step(FIRST, SECOND).lines


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("naive", 1), ("gpipe", 1), ("1f1b", 1), ("looped_bfs", 2), ("interleaved_1f1b", 2), ("zbv", 2), ("dualpipev", 2)],
)
def test_without_messages_a_step_is_as_simulated(schedule: str, chunks: int) -> None:
    step = one_step(*timelines_of(schedule, 2, 8, chunks), schedule=schedule)
    assert step.simulated == pytest.approx(step.idle)
    assert step.longer_s == pytest.approx(0.0, abs=1e-9)


def test_what_messages_cost_is_the_difference() -> None:
    step = one_step(*timelines_of("1f1b", 2, 8, 1, send_s=0.02), schedule="1f1b")
    assert step.simulated == pytest.approx(1 / 9)  # (p - 1) / (m + p - 1)
    assert step.idle > 0.3


def test_the_answer_names_both_bubbles_and_where_they_differ_most() -> None:
    first, second = timelines_of("gpipe", 2, 4, 1)
    late = [[*action[:3], action[3] + 0.03, action[4] + 0.03] if action[0] == "B" else action for action in first]
    second[-1][4] -= 0.01
    data = Timeline().select(reading(late, second))
    assert Timeline().answer(data or []) == (
        "pp2, gpipe: ranks idle 36 % of the step, simulated 20 %; the difference is largest on the rank with stage 1, "
        "which waits 40 ms longer."
    )


@pytest.mark.parametrize(
    "options",
    [{"schedule": "1f1b"}, {"schedule": "unheard of"}, {"schedule": None}, {"schedule": ["zbv"]}],
    ids=lambda options: str(options["schedule"]),
)
def test_what_is_not_as_scheduled_is_shown_alone(options: dict[str, Any]) -> None:
    step = one_step(FIRST, SECOND[:1], **options)
    assert (step.simulated, step.lines) == (None, ("stage 0", "stage 1"))
    assert Timeline().answer([step]) == ""
    assert Timeline().draw([step])[0].title.endswith("idle 60 % of the step")


def test_the_figure_has_a_line_for_each_stage_and_each_is_simulated_on_the_same_axis() -> None:
    (panel,) = Timeline().draw([one_step(FIRST, SECOND)])
    axes = panel.figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "stage 1, simulated"
    assert len(panel.figure.axes) == 1
    words = [panel.words(entry) for entry in panel.entries]
    assert words[1].startswith("stage 0; waiting; start 100")
    assert len(panel.entries) == len(one_step(FIRST, SECOND).spans)


STRANGE: list[Any] = [
    None, 3, "F", {}, [[]], [["F"]], [["F", 0, 0, 0.0, float("nan")]], [["F", 0, 0, 1.0, 0.5]],
    [["F", -1, 0, 0.0, 1.0]], [["F", 10**9, 10**9, 0.0, 1.0]], [["<script>", 0, 0, 0.0, 1.0]], [["F", 0, 0, 0.0, 0.0]],
    [["F", 0, 0, 0, 1]], [["F", True, 0, 0.0, 1.0]], [["F", 0, 0, 0.0, 1e300]], [[None, 0, 0, 0.0, 1.0]],
]  # fmt: skip


@pytest.mark.parametrize("strange", STRANGE, ids=range(len(STRANGE)))
def test_a_damaged_timeline_is_left_out_or_drawn_as_text(strange: Any) -> None:
    chart = Timeline()
    for layout in ("pp2", "<script>" + "x" * 100_000):
        for timelines in ((strange,), (FIRST, strange), (FIRST, SECOND, strange)):
            data = chart.select(reading(*timelines, layout=layout)) or []
            assert len(chart.answer(data)) < 500
            assert "<script>" not in "".join(svg(panel, "n", "l") for panel in chart.draw(data))


def test_without_a_pipeline_there_is_none() -> None:
    assert Timeline().select(reading()) is None
