from dataclasses import replace
from typing import Any

from clusterbench.cases import Reading
from clusterbench.charts.planted_faults import PlantedFaults
from clusterbench.run_folder.attempts import History
from tests.report.synthetic import case, observation, of_rows, outcome


def drill(fault: str, status: Any = "failed", rank: int | None = 1, elapsed_s: float = 0.5) -> History:
    planned = case(
        fault,
        id=f"fault_drill/1n4/{fault}-in-run",
        benchmark="fault_drill",
        point={"fault": fault, "phase": "run", "rank": 1},
        expected_outcomes=("failed", "timeout"),
    )
    if status == "not_run":
        return History(planned)
    seen = (observation(planned),) if status == "ok" else ()
    return History(planned, (outcome(planned, status, rank=rank, elapsed_s=elapsed_s),), seen)


def probe(status: Any = "ok") -> History:
    planned = case("probe")
    seen = (observation(planned),) if status == "ok" else ()
    return History(planned, (outcome(planned, status),), seen)


def run(*histories: History) -> Reading:
    return replace(of_rows([]), histories=histories)


def said(*histories: History) -> str:
    data = PlantedFaults().select(run(*histories))
    assert data is not None
    return PlantedFaults().answer(data)


HANG = drill("hang", "timeout", elapsed_s=6.9)


def test_the_answer_says_that_faults_came_to_light_and_cases_after_them_ran() -> None:
    healthy = drill("none", "ok", None)
    assert said(healthy, drill("kill"), healthy, HANG, drill("raise"), drill("exit"), probe()) == (
        "4 of 4 planted faults came to light with the right rank named. 2 of 2 cases after them without a fault ran."
    )


def test_each_fault_that_did_not_come_to_light_as_it_should_is_named() -> None:
    assert said(
        drill("kill"),
        drill("stop", "ok", None),
        drill("exit", rank=0),
        drill("raise", "out_of_memory"),
        drill("hang", "not_run"),
        probe("failed"),
    ) == (
        "1 of 5 planted faults came to light with the right rank named; not noticed: 1n4/stop-in-run; rank 1 not "
        "named: 1n4/exit-in-run; not the end that the suite expects: 1n4/raise-in-run; not run: 1n4/hang-in-run. 0 of "
        "1 case after them without a fault ran; not: planted/1n4/probe (failed)."
    )


def test_bars_show_how_soon_and_the_table_what_came_after() -> None:
    data = PlantedFaults().select(run(drill("kill"), HANG, drill("exit", rank=None), probe()))
    assert data is not None
    (panel,) = PlantedFaults().draw(data)
    assert [entry.cells[:2] for entry in panel.entries] == [
        ("1n4/exit-in-run: failed, rank 1 not named", 0.5),
        ("1n4/hang-in-run: timeout, rank 1", 6.9),
        ("1n4/kill-in-run: failed, rank 1", 0.5),
        ("planted/1n4/probe, no fault: ok", None),
    ]


def test_a_slow_rank_and_a_run_about_something_else_show_nothing() -> None:
    assert PlantedFaults().select(run(drill("slow", "ok", None))) is None
    assert PlantedFaults().select(run(drill("kill"), probe())) is None
