from clusterbench.charts.memory import Memory
from clusterbench.rows import Row
from tests.report.synthetic import case, row


def memory(layout: str, total: float, **parts: float) -> list[Row]:
    one = case(layout, point={"layout": layout})
    rows = [row(one, "peak_memory", size, unit="B", detail={"category": name}) for name, size in parts.items()]
    return [*rows, row(one, "peak_memory", total, unit="B", detail={"category": "total"})]


def test_parts_are_stacked_and_the_whole_is_not_one_of_them() -> None:
    (bar,) = Memory().select(memory("tp2", 20, parameters=10, gradients=15, reserved=64)) or []
    assert bar.parts == {"parameters": 10, "gradients": 15}
    assert bar.total == 20


def test_the_whole_stands_beside_the_bar_and_not_the_sum_of_peaks() -> None:
    (figure,) = Memory().draw(Memory().select(memory("tp2", 20, parameters=10, gradients=15)) or [])
    assert [text.get_text() for text in figure.figure.axes[0].texts] == ["20"]


def test_what_was_expected_of_a_part_is_a_tick_at_its_end() -> None:
    one = case("tp2", point={"layout": "tp2"})
    rows = [
        row(one, "peak_memory", 10.0, unit="B", detail={"category": "parameters"}),
        row(one, "peak_memory", 8.0, unit="B", detail={"category": "gradients"}, expected=9.0),
    ]
    (figure,) = Memory().draw(Memory().select(rows) or [])
    (ticks,) = [line for line in figure.figure.axes[0].lines if line.get_label() == "expected"]
    assert list(ticks.get_xdata()) == [19.0]


def test_out_of_memory_keeps_its_place_among_the_bars() -> None:
    lost = row(case("tp1", point={"layout": "tp1"}), "", None, status="out_of_memory")
    bars = Memory().select([lost, *memory("tp2", 10, parameters=10)]) or []
    assert [(bar.label, bar.status) for bar in bars] == [("tp1", "out_of_memory"), ("tp2", "ok")]
    (figure,) = Memory().draw(bars)
    assert "× out of memory" in [text.get_text() for text in figure.figure.axes[0].texts]


def test_without_parts_there_is_nothing_to_stack() -> None:
    assert Memory().select([row(case("a"))]) is None
