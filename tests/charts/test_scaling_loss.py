from typing import Any

import pytest

from clusterbench.charts.scaling_loss import ScalingLoss
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def run(layout: str, world_size: int, step_s: float, **lost_s: float) -> list[Row]:
    """A step and what it lost, seconds of ``part`` or ``part__axis``; of 8 s on one rank."""
    planned = case(layout, world_size, point={"layout": layout, "shape": "tiny", "global_batch_size": 8})
    efficiency = 8.0 / world_size / step_s
    found = [
        row(planned, "scaling_efficiency", efficiency, unit="fraction", basis="strong scaling: over tp1"),
        row(planned, "tokens_per_s_per_rank", 1000 * efficiency, unit="tokens/s"),
        row(planned, "step_time", step_s),
    ]
    for name, seconds in lost_s.items():
        part, _, axis = name.partition("__")
        detail = {"part": part, "axis": axis} if axis else {"part": part}
        found.append(row(planned, "scaling_loss_part", seconds, detail=detail))
    return found


BASE = run("tp1", 1, 8.0)


def selected(*rows: list[Row]) -> Any:
    return ScalingLoss().select(of_rows([row for some in (BASE, *rows) for row in some]))


def test_the_parts_are_points_of_the_throughput_per_rank() -> None:
    # ideal are 2 s, it took 4: half of the throughput is lost
    data = selected(run("tp4", 4, 4.0, exposed_communication__tp=1.2, imbalance=0.6, rest=0.2, bubble=0.0))
    assert ScalingLoss().answer(data) == (
        "From 1 to 4 ranks, tp4 loses 50 % of the throughput per rank; in points: 30 exposed tp communication, "
        "15 imbalance, 5 the rest."
    )
    (panel,) = ScalingLoss().draw(data)
    assert [column.name for column in panel.columns] == [
        "bar", "exposed tp", "imbalance", "rest", "sum", "lost in all", "outcome", "gained",
    ]  # fmt: skip
    ((label, *shares, whole, outcome, gained),) = (entry.cells for entry in panel.entries)
    assert (label, outcome, gained) == ("4 ranks: tp4", "", None)
    assert shares == pytest.approx([0.3, 0.15, 0.05, 0.5])
    assert whole == pytest.approx(0.5)


def test_a_gain_is_taken_off_and_stands_in_the_table() -> None:
    data = selected(run("tp4", 4, 2.5, compute=-0.25, exposed_communication__tp=0.75))
    assert ScalingLoss().answer(data) == (
        "From 1 to 4 ranks, tp4 loses 20 % of the throughput per rank; in points: 30 exposed tp communication, "
        "less 10 gained."
    )
    (panel,) = ScalingLoss().draw(data)
    assert panel.entries[0].cells[-1] == pytest.approx(0.1)


def test_the_best_of_the_largest_runs_is_the_answer() -> None:
    data = selected(run("tp2", 2, 8.0, rest=4.0), run("tp4", 4, 8.0, rest=6.0), run("dp4", 4, 4.0, compute=2.0))
    assert ScalingLoss().answer(data) == (
        "From 1 to 4 ranks, dp4 loses 50 % of the throughput per rank; in points: 50 longer computing."
    )


def test_a_run_that_loses_nothing_says_so() -> None:
    data = selected(run("tp2", 2, 4.0, compute=0.0))
    assert ScalingLoss().answer(data) == "From 1 to 2 ranks, tp2 loses nothing of the throughput per rank."
    assert len(ScalingLoss().draw(data)) == 1


def test_without_parts_there_is_nothing_to_take_apart() -> None:
    assert selected(run("tp2", 2, 5.0)) is None


def test_of_layouts_that_differ_in_an_option_the_answer_says_which() -> None:
    slow, fast = (
        [each._replace(case=f"{each.case} {schedule}", point={**each.point, "schedule": schedule}) for each in rows]
        for schedule, rows in (("gpipe", run("pp4", 4, 4.0, rest=2.0)), ("zbv", run("pp4", 4, 2.5, rest=0.5)))
    )
    assert ScalingLoss().answer(selected(slow, fast)).startswith("From 1 to 4 ranks, pp4, zbv loses 20 %")
