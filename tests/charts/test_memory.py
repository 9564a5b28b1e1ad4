from clusterbench.charts.memory import Memory
from clusterbench.rows import Row
from tests.report.synthetic import case, row


def memory(layout: str, expected: float | None = None, **parts: float) -> list[Row]:
    one = case(layout, point={"layout": layout})
    rows = [row(one, "peak_memory", size, unit="B", detail={"category": name}) for name, size in parts.items()]
    return [
        *rows,
        row(one, "peak_memory", sum(parts.values()), unit="B", detail={"category": "total"}, expected=expected),
    ]


def test_parts_are_stacked_and_the_whole_is_not_one_of_them() -> None:
    (bar,) = Memory().select(memory("tp2", expected=30.0, parameters=10, gradients=15, reserved=64)) or []
    assert bar.parts == {"parameters": 10, "gradients": 15}
    assert bar.marker == 30.0


def test_expected_parts_add_up_only_when_none_is_missing() -> None:
    one = case("tp2", point={"layout": "tp2"})
    rows = [
        row(one, "peak_memory", 10.0, detail={"category": name}, expected=9.0) for name in ("parameters", "gradients")
    ]
    assert [bar.marker for bar in Memory().select(rows) or []] == [18.0]
    rows.append(row(one, "peak_memory", 10.0, detail={"category": "temporary"}))
    assert [bar.marker for bar in Memory().select(rows) or []] == [None]


def test_out_of_memory_keeps_its_place_among_the_bars() -> None:
    lost = row(case("tp1", point={"layout": "tp1"}), "", None, status="out_of_memory")
    bars = Memory().select([lost, *memory("tp2", parameters=10)]) or []
    assert [(bar.label, bar.status) for bar in bars] == [("tp1", "out_of_memory"), ("tp2", "ok")]
    (figure,) = Memory().draw(bars)
    assert "× out of memory" in [text.get_text() for text in figure.axes[0].texts]


def test_without_parts_there_is_nothing_to_stack() -> None:
    assert Memory().select([row(case("a"))]) is None
