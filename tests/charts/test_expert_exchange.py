from __future__ import annotations

from clusterbench.charts.expert_exchange import ExpertExchange
from clusterbench.rows import Row
from tests.report.synthetic import of_rows, plain_row


def exchanged(test: str, metric: str, value: float, part: str, runners: str = "0 8") -> Row:
    unit = "s" if metric == "time" else "B/s"
    point = {"test": test, "num_tokens": 4096, "runners": runners}
    return plain_row("deepep", metric, value, point, unit=unit)._replace(detail={"part": part})


ROWS = [
    exchanged("internode", "rdma_bandwidth", 43e9, "dispatch"),
    exchanged("internode", "nvl_bandwidth", 110e9, "dispatch"),
    exchanged("internode", "time", 1.2e-3, "dispatch"),
    exchanged("intranode", "nvl_bandwidth", 153e9, "combine", runners="0"),
]


def test_the_most_and_the_least_are_said_with_their_way() -> None:
    """Of rdma's benchmarks it was the last whose figures no chart showed."""
    data = ExpertExchange().select(of_rows(ROWS))
    assert data is not None
    assert ExpertExchange().answer(data) == (
        "DeepEP carries 153.0 GB/s at most (intranode, combine, over NVLink, 4,096 tokens a rank, from rank 0) and "
        "43.0 GB/s at least (internode, dispatch, over RDMA, 4,096 tokens a rank, 2 nodes), "
        "tokens that stay on their rank included."
    )
    rates, times = ExpertExchange().draw(data)
    assert [entry.cells[1] for entry in rates.entries] == [43e9, 110e9, 153e9]
    assert [entry.cells[:2] for entry in times.entries] == [
        ("internode, dispatch, 4,096 tokens a rank, 2 nodes", 1.2e-3)
    ]


def test_one_rate_is_most_and_least_and_times_alone_say_nothing() -> None:
    one = ExpertExchange().select(of_rows(ROWS[:1]))
    assert one is not None
    assert " at least" not in ExpertExchange().answer(one)
    assert ExpertExchange().answer([ROWS[2]]) == ""
    assert ExpertExchange().select(of_rows([])) is None
