"""The timeline shows every place of the pipeline once, as its ranks measured it."""

from __future__ import annotations

from dataclasses import replace

from clusterbench.charts.timeline import Timeline
from clusterbench.history import Reading
from tests.report.synthetic import case, observation, outcome
from tests.report.synthetic import reading as read

FIRST = [["F", 0, 0, 0.0, 0.1], ["B", 0, 0, 0.3, 0.5]]
SECOND = [["F", 1, 0, 0.1, 0.2], ["B", 1, 0, 0.2, 0.3]]


def reading(*timelines: object) -> Reading:
    piped = case("pp2", point={"layout": "pp2", "schedule": "1f1b"})
    seen = replace(observation(piped), passes={"timeline": timelines})
    return read((outcome(piped), seen), cases=[piped])


def test_each_place_is_a_line_and_each_action_a_box() -> None:
    (step,) = Timeline().select_from(reading(FIRST, SECOND)) or []
    assert step.name == "pp2, 1f1b"
    assert step.lines == ("stage 0", "stage 1")
    assert [(span.line, span.kind, span.start_s) for span in step.spans] == [
        (0, "F", 0.0),
        (0, "B", 0.3),
        (1, "F", 0.1),
        (1, "B", 0.2),
    ]


def test_ranks_of_one_place_are_drawn_once() -> None:
    (step,) = Timeline().select_from(reading(FIRST, FIRST, SECOND, SECOND)) or []
    assert len(step.lines) == 2
    assert len(step.spans) == 4


def test_the_figure_has_a_line_for_each_stage() -> None:
    chart = Timeline()
    (figure,) = chart.draw(chart.select_from(reading(FIRST, SECOND)) or [])
    assert [label.get_text() for label in figure.figure.axes[0].get_yticklabels()] == ["stage 0", "stage 1"]


def test_without_a_pipeline_there_is_none() -> None:
    assert Timeline().select_from(reading()) is None
