from __future__ import annotations

from typing import Any

from clusterbench.cases import Reading
from clusterbench.charts.embedding_lookup import EmbeddingLookups
from clusterbench.rows import Row
from tests.report.synthetic import of_rows


def looked_up(
    case: str, latency_s: float | None, parts: dict[str, float], imbalance: float = 1.0, **options: Any
) -> list[Row]:
    point = {"size_bytes": 4096, "lookups": 1000, **options}

    def row(metric: str, unit: str, value: float | None, **detail: str) -> Row:
        at = ("run", case, "embedding_lookup", 1, "ok", point, 1, 4, "a", "cpu")
        return Row(*at, metric, unit, value, detail=detail)

    return [
        row("latency", "s", latency_s),
        *(row("part_time", "s", seconds, part=part) for part, seconds in parts.items()),
        row("imbalance", "1", imbalance),
    ]


def drawn(*cases: list[Row]) -> tuple[EmbeddingLookups, Any]:
    data = EmbeddingLookups().select(of_rows([row for rows in cases for row in rows]))
    return EmbeddingLookups(), data


EVEN = looked_up("even", 0.02, {"sort": 0.001, "ids": 0.004, "rows": 0.005}, placement="cyclic")
UNEVEN = looked_up("uneven", 0.05, {"sort": 0.001, "ids": 0.03, "rows": 0.02}, imbalance=3.25, placement="blocks")


def test_the_fastest_is_named_with_what_sending_takes_of_it_and_the_most_uneven() -> None:
    chart, data = drawn(EVEN, UNEVEN)
    assert chart.answer(data) == (
        "Ranks look up 200.0 k rows/s at most, with cyclic; sending is 90 % of the parts. With blocks one keeper "
        "is asked for 3.2 times the average."
    )


def test_one_case_alone_needs_no_name() -> None:
    chart, data = drawn(EVEN)
    assert chart.answer(data) == "Ranks look up 200.0 k rows/s; sending is 90 % of the parts."


def test_bars_are_parts_and_the_diamond_is_the_whole() -> None:
    chart, data = drawn(EVEN, UNEVEN)
    (panel,) = chart.draw(data)
    first = panel.entries[0]
    assert [column.name for column in panel.columns][:2] == ["bar", "sort by keeper"]
    assert first.case == "even"


def test_without_a_look_up_that_was_timed_there_is_no_chart() -> None:
    assert drawn(looked_up("x", None, {}))[1] is None
    assert EmbeddingLookups().select(of_rows([])) is None
    assert isinstance(of_rows([]), Reading)
