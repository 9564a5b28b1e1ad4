from __future__ import annotations

from clusterbench.charts.kernel_starts import KernelStarts
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def start(mode: str, metric: str, value: float, ranks: int = 8) -> Row:
    of = case(f"{mode}-1000", ranks, benchmark="kernel_launch", point={"mode": mode, "launches": 1000})
    return row(of, metric, value, unit="s")


ROWS = [
    start("graph", "graph_node_time", 2e-6),
    start("launch", "launch_time", 4.25e-6),
    start("round_trip", "round_trip_time", 9e-6),
]


def test_each_way_to_start_a_kernel_is_said_with_its_time() -> None:
    data = KernelStarts().select(of_rows(ROWS))
    assert data is not None
    assert KernelStarts().answer(data) == (
        "A kernel with next to nothing to do takes 4.25 us launched behind others, 9.00 us launched and waited for, "
        "2.00 us in a CUDA graph."
    )
    (panel,) = KernelStarts().draw(data)
    assert panel.title == "Time of one, 8 ranks"
    assert [entry.cells[:2] for entry in panel.entries] == [
        ("launched behind others", 4.25e-6),
        ("launched and waited for", 9e-6),
        ("in a CUDA graph", 2e-6),
    ]


def test_with_several_numbers_of_ranks_each_bar_says_its_own_and_the_fewest_answer() -> None:
    data = KernelStarts().select(of_rows([start("launch", "launch_time", 5e-6, 16), *ROWS[1:2]]))
    assert data is not None
    assert "takes 4.25 us launched" in KernelStarts().answer(data)
    (panel,) = KernelStarts().draw(data)
    assert [entry.cells[0] for entry in panel.entries] == [
        "launched behind others, 8 ranks",
        "launched behind others, 16 ranks",
    ]


def test_on_a_cpu_it_is_an_operator() -> None:
    data = KernelStarts().select(of_rows([start("operator", "operator_overhead", 1.5e-6)]))
    assert data is not None
    assert KernelStarts().answer(data) == "An operator with next to nothing to do takes 1.50 us on a CPU."


def test_nothing_is_shown_without_a_figure() -> None:
    assert KernelStarts().select(of_rows([])) is None
