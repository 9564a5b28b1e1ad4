from __future__ import annotations

from clusterbench.charts.lone_rank import Alone, LoneRank
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row

GIB = 2.0**30


def alone(layout: str, time_s: float, compute_s: float | None, held: float, device: str = "cuda") -> list[Row]:
    point = {"shape": "llama-8b", "layout": layout, "compile": "compiled" in layout}
    of = case(layout, 1, id=f"rank_step/1n1/{layout}", benchmark="rank_step", point=point, device=device)
    rows = [row(of, "rank_time", time_s, unit="s"), row(of, "compute_time", compute_s, unit="s")]
    for category, size in (("parameters", held / 2), ("total", held)):
        rows.append(row(of, "peak_memory", size, unit="B", detail={"category": category}))
    return rows


def selected(rows: list[Row]) -> list[Alone]:
    return LoneRank().select(of_rows(rows)) or []


def test_each_rank_is_said_with_what_it_takes_waits_and_holds() -> None:
    """The suite one_gpu_fake asks it; its cases were in a chart of traffic alone, of which nothing is sent."""
    data = selected([*alone("tp8+sp", 0.2, 0.15, 30 * GIB), *alone("pp4", 0.1, 0.1, 60 * GIB)])
    assert LoneRank().answer(data) == (
        "One rank of tp8+sp takes 200.000 ms for a step, of which its GPU waits 25 % for its host, and holds 30GiB.\n"
        "One rank of pp4 takes 100.000 ms for a step, of which its GPU waits 0 % for its host, and holds 60GiB."
    )
    time, memory = LoneRank().draw(data)
    assert [entry.cells[1] for entry in time.entries][:1] == [0.15]
    assert [entry.cells[1] for entry in memory.entries] == [30 * GIB, 60 * GIB]


def test_a_cpu_launches_nothing_and_waits_for_no_host() -> None:
    data = selected(alone("tp2", 0.2, 0.1, GIB, device="cpu"))
    assert LoneRank().answer(data) == "One rank of tp2 takes 200.000 ms for a step, and holds 1GiB."
    time, _ = LoneRank().draw(data)
    assert [entry.cells[1] for entry in time.entries] == [0.2]


def test_where_the_profiler_saw_nothing_the_whole_step_is_drawn() -> None:
    data = selected([*alone("tp8", 0.2, None, GIB), *alone("pp4", 0.1, 0.1, GIB)])
    assert "waits" not in LoneRank().answer(data[:1])
    time, _ = LoneRank().draw(data)
    assert [entry.cells[1] for entry in time.entries] == [0.2, 0.1]


def test_without_such_a_rank_there_is_nothing() -> None:
    assert LoneRank().select(of_rows([])) is None
