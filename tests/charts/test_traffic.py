from clusterbench.charts.traffic import Traffic
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def traffic(axis: str, counted: float, formula: float | None, basis: str = "") -> Row:
    planned = case("tp2", point={"layout": "dp2-tp2"})
    return row(planned, "traffic_bytes", counted, unit="B", expected=formula, detail={"axis": axis}, basis=basis)


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


def test_what_a_router_decides_is_not_held_against_the_formula() -> None:
    routed = traffic("ep", 65, 64, "about; bytes of an even load; the router decides how many rows each rank gets")
    assert Traffic().answer([traffic("dp", 64, 64), routed]) == (
        "Counted traffic equals the formula to the byte in all 1 comparisons. "
        "Not judged: 1 more, of which a router decides what the axis carries."
    )
    assert Traffic().answer([routed]) == ""
    (panel,) = Traffic().draw([routed])
    assert [text.get_text() for text in panel.figure.legends[0].get_texts()] == [
        "counted", "formula, of an even load where routed",
    ]  # fmt: skip


def test_an_axis_without_traffic_shows_nothing() -> None:
    assert Traffic().select(of_rows([traffic("dp", 0, 0)])) is None


def test_cases_of_several_axes_are_not_said_to_be_missing() -> None:
    cases = [case(str(number), point={"layout": f"dp2-tp{number}"}) for number in range(60)]
    rows = [
        row(of, "traffic_bytes", 64, unit="B", detail={"axis": axis})
        for of, axis in zip(cases, ["dp"] * 25 + ["tp"] * 20 + ["cp"] * 15, strict=True)
    ]
    assert Traffic().left_out(rows[1:]) == ""
    assert Traffic().left_out(rows) == "Drawn are the first 24 of 25 cases of an axis; all are in the table of cases."
