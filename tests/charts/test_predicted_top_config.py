"""The heatmap of prices: the cells of the measured one, what prices choose there, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from clusterbench.cases import Reading
from clusterbench.cases.prices import PricedCase, Prices
from clusterbench.charts.predicted_top_config import Confronted, PredictedTopConfig
from clusterbench.charts.top_config import TopConfig
from clusterbench.drawing.panel import Entry, Panel
from clusterbench.pricing import Price
from clusterbench.rows import Row
from tests.charts.test_top_config import FOUR, LARGE, step
from tests.report.synthetic import of_rows

TOKENS = 1000
ROWS = [*FOUR, *LARGE, *step("tp1", 300)]


def read(rows: list[Row], speeds: Mapping[str, float], **told: PricedCase) -> Reading:
    """``speeds`` are those that prices come to, by layout; of cases that are not there nothing is known."""
    of_layout = {str(row.point["layout"]): row.case for row in rows if row.point["shape"] == "small"}
    priced = {of_layout[layout]: of(speed) for layout, speed in speeds.items()}
    return replace(of_rows(rows), prices=Prices({**priced, **{of_layout[name]: case for name, case in told.items()}}))


def of(speed: float, **changes: object) -> PricedCase:
    step_s = TOKENS / speed
    price = Price(step_s, {"compute": 0.8 * step_s, "tp": 0.2 * step_s}, step_s / 1.2, step_s * 1.2)
    return replace(PricedCase(price, "priced", TOKENS, 1e9, "fits"), **changes)


SPEEDS = {"dp4": 800, "tp4": 1000, "pp4": 700, "tp1": 310}


def panel(reading: Reading) -> Panel:
    (drawn,) = PredictedTopConfig().draw(chosen(reading))
    return drawn


def chosen(reading: Reading) -> list[Confronted]:
    return PredictedTopConfig().select(reading) or []


def cell(reading: Reading, row: str, ranks: float) -> tuple[dict[str, object], Entry]:
    drawn = panel(reading)
    (found,) = (entry for entry in drawn.entries if entry.cells[0] == row and ranks in entry.cells)
    return {column.name: value for column, value in zip(drawn.columns, found.cells, strict=True)}, found


def test_without_prices_there_is_no_picture() -> None:
    assert PredictedTopConfig().select(of_rows(ROWS)) is None


def test_the_axes_are_those_of_the_measured_heatmap() -> None:
    reading = read(ROWS, SPEEDS)
    (measured,) = TopConfig().draw(TopConfig().select(reading) or [])
    mine, theirs = panel(reading).figure.axes[0], measured.figure.axes[0]
    assert [tick.get_text() for tick in mine.get_xticklabels()] == [
        tick.get_text() for tick in theirs.get_xticklabels()
    ]
    assert mine.get_xlabel() == theirs.get_xlabel()
    assert [entry.cells[:2] for entry in panel(reading).entries] == [entry.cells[:2] for entry in measured.entries]


def test_a_cell_has_the_choice_of_the_price_and_what_was_measured_of_it() -> None:
    cells, entry = cell(read(ROWS, SPEEDS), "small", 4)
    assert cells == {
        "shape": "small",
        "ranks": 4.0,
        "best by price": "tp4",
        "priced": pytest.approx(1000),
        "measured": 700.0,
        "measured over priced": pytest.approx(0.7),
        "fastest measured": "dp4",
        "longer than the fastest by": pytest.approx(900 / 700 - 1),
        "price goes to (%)": "compute 80, tp 20",
        "farthest off": "no traced step",
    }
    assert entry.case.startswith("planted/1n4/tp4")


def test_the_answer_says_how_often_prices_choose_right() -> None:
    assert PredictedTopConfig().answer(chosen(read(ROWS, SPEEDS))) == (
        "The price chooses the fastest measured configuration in 1 of 2 cells; its choice takes 14 % longer for a step "
        "(median), at most 29 %."
    )


def test_a_choice_that_failed_when_it_ran_says_so() -> None:
    cells, _ = cell(read(ROWS, SPEEDS | {"dp2-tp2": 2000}), "small", 4)
    assert (cells["best by price"], cells["measured"], cells["farthest off"]) == ("dp2-tp2", None, "failed")
    assert cells["longer than the fastest by"] is None


def test_what_does_not_fit_by_its_price_is_not_chosen() -> None:
    reading = read(ROWS, {"dp4": 800, "pp4": 700, "tp1": 310}, tp4=of(1000, fits="does not fit"))
    cells, entry = cell(reading, "small", 4)
    assert cells["best by price"] == "dp4"
    assert entry.story is not None
    assert "2 more have no price, do not fit by it, or are refused." in entry.story.sentences


def test_a_cell_without_a_price_says_none() -> None:
    cells, entry = cell(read(ROWS, SPEEDS), "large", 4)
    assert (cells["best by price"], cells["priced"], entry.story) == ("none", None, None)


def test_a_chosen_cell_lists_every_configuration_by_its_price() -> None:
    _, entry = cell(read(ROWS, SPEEDS), "small", 4)
    assert entry.story is not None
    assert [line[:5] for line in entry.story.lines] == [
        ("1", "tp4", "1,000", "700", "0.70"),
        ("2", "dp4", "800", "900", "1.12"),
        ("3", "pp4", "700", "800", "1.14"),
    ]
    assert entry.story.sentences[:2] == (
        "The price chooses tp4: 1.000 s for a step, 80 % within 833.333 ms to 1.200 s; of 100: compute 80, tp 20.",
        "It takes 29 % longer than the fastest measured.",
    )


def test_the_part_that_is_farthest_off_is_named_where_a_step_was_traced() -> None:
    (tp4,) = (row for row in FOUR if row.point["layout"] == "tp4")
    traced = [
        tp4._replace(metric="step_part", unit="s", value=value, detail=detail)
        for value, detail in ((0.7, {"part": "compute"}), (0.73, {"part": "exposed_communication", "axis": "tp"}))
    ]
    cells, _ = cell(read([*ROWS, *traced], SPEEDS), "small", 4)
    assert cells["farthest off"] == "communication: 730.000 ms, priced 200.000 ms"
