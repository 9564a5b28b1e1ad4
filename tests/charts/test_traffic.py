from clusterbench.charts.traffic import Traffic
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def traffic(axis: str, counted: float, formula: float | None) -> Row:
    planned = case("tp2", point={"layout": "dp2-tp2"})
    return row(planned, "traffic_bytes", counted, unit="B", expected=formula, detail={"axis": axis})


def test_there_is_one_panel_an_axis() -> None:
    rows = [traffic("tp", 64, 64), traffic("dp", 32, 32)]
    assert [figure.figure.axes[0].get_title(loc="left") for figure in Traffic().draw(rows)] == [
        "Axis dp, per rank and step",
        "Axis tp, per rank and step",
    ]


def test_the_answer_counts_where_formula_and_count_agree() -> None:
    assert Traffic().answer([traffic("tp", 64, 64)]) == (
        "Counted traffic equals the formula to the byte in all 1 comparisons."
    )
    assert Traffic().answer([traffic("tp", 64, 64), traffic("dp", 65, 64)]) == (
        "Counted traffic equals the formula in 1 of 2 comparisons."
    )
    assert Traffic().answer([traffic("tp", 64, None)]) == ""


def test_an_axis_without_traffic_shows_nothing() -> None:
    assert Traffic().select(of_rows([traffic("dp", 0, 0)])) is None
