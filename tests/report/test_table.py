"""Which columns the table of cases has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbench.derive import read
from clusterbench.report.table import MOST_METRICS, columns
from clusterbench.types import Timing, WarmUp
from tests.report.synthetic import case, observation, outcome, plant, write_run


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def names(path: Path, num_metrics: int, num_cases: int = 8) -> list[str]:
    """Columns of a run in which each case has a figure of its own beside the step time."""
    cases = [case(f"c{number}") for number in range(num_cases)]
    figures = [
        [{"name": f"metric_{number % num_metrics}", "unit": "s", "value": 1.0 + number}] for number in range(num_cases)
    ]
    records = [
        (outcome(planned), observation(planned, figures=own)) for planned, own in zip(cases, figures, strict=True)
    ]
    return [column.name for column in columns(read(write_run(path, cases, records)))]


def test_few_metrics_have_a_column_each(tmp_path: Path) -> None:
    assert [name for name in names(tmp_path / "run", 4) if name.startswith("metric")] == [
        f"metric_{number}" for number in range(4)
    ]


def test_of_many_metrics_those_that_hardly_a_case_has_are_left_out(tmp_path: Path) -> None:
    found = names(tmp_path / "run", MOST_METRICS // 2 + 1)
    assert "step_time" in found
    assert [name for name in found if name.startswith("metric")] == []


def test_a_case_that_was_timed_too_early_is_flagged_where_its_figures_are(tmp_path: Path) -> None:
    early, late = case("early"), case("late")
    warm_ups = WarmUp(False, 0.03, 9.7, 1, [0.1]), WarmUp(True, 0.003, 1.2, 1, [0.1])
    records = [
        (outcome(planned), observation(planned, timing=[Timing(0.0, 2.0, warm_up)] * 4))
        for planned, warm_up in zip((early, late), warm_ups, strict=True)
    ]
    found = {
        column.name: column.values for column in columns(read(write_run(tmp_path / "run", [early, late], records)))
    }
    assert found["note"] == ["not settled", None]
    assert "warm_up_drift" not in found


def test_rates_of_bytes_have_one_unit_so_that_they_can_be_compared(tmp_path: Path) -> None:
    figures = [
        {"name": "algbw", "unit": "B/s", "value": 0.9e9},
        {"name": "busbw", "unit": "B/s", "value": 1.6e9},
        {"name": "latency", "unit": "s", "value": 2e-5},
    ]
    planned = case("a", 1)
    run = write_run(tmp_path / "run", [planned], [(outcome(planned), observation(planned, figures=figures))])
    shown = {column.name: (column.unit, column.values) for column in columns(read(run))}
    assert (shown["algbw"], shown["busbw"]) == (("GB/s", [0.9]), ("GB/s", [1.6]))
    assert shown["latency"][0] == "us"
