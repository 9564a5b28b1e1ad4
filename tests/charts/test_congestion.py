from __future__ import annotations

from clusterbench.charts.congestion import Congested, Congestion
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def beside(neighbours: str, impact: float, tail: float, incast: float | None = None, size: int = 8) -> list[Row]:
    point = {
        "size_bytes": size,
        "victim": "all_reduce",
        "neighbours": neighbours,
        "neighbour_size_bytes": 2**20,
        "between": "nodes",
        "num_units": 4,
    }
    of = case(f"{neighbours}-{size}", benchmark="congestion", point=point)
    rows = [
        row(of, "congestion_impact", impact, unit="1"),
        row(of, "congestion_impact_p99", tail, unit="1"),
    ]
    return rows + ([] if incast is None else [row(of, "incast_bandwidth", incast, unit="B/s")])


def selected(rows: list[Row]) -> list[Congested]:
    return Congestion().select(of_rows(rows)) or []


def test_the_worst_operation_is_said_with_what_neighbours_did() -> None:
    data = selected([*beside("all_to_all", 1.2, 2.0), *beside("incast", 3.4, 9.0, 4e10)])
    assert Congestion().answer(data) == (
        "Beside neighbours operations take up to 3.40 times as long (all_reduce of 8B beside incast of 1MiB, 4 nodes). "
        "One receiver of many senders gets 40.0 GB/s."
    )
    (panel,) = Congestion().draw(data)
    assert [entry.cells[0] for entry in panel.entries] == [
        "all_reduce of 8B beside incast of 1MiB, 4 nodes",
        "all_reduce of 8B beside all_to_all of 1MiB, 4 nodes",
    ]
    assert [entry.cells[1:3] for entry in panel.entries] == [(3.4, 9.0), (1.2, 2.0)]


def test_a_network_that_keeps_its_queues_short_is_said_so() -> None:
    assert Congestion().answer(selected(beside("incast", 1.04, 1.2))) == (
        "No operation takes 1.1 times as long beside neighbours; the most is 1.04 times as long "
        "(all_reduce of 8B beside incast of 1MiB, 4 nodes)."
    )


def test_nothing_is_shown_without_a_figure() -> None:
    assert Congestion().select(of_rows([])) is None
