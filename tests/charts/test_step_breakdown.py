import pytest
from matplotlib.colors import to_rgba

from clusterbench.charts._part_colours import part_colours
from clusterbench.charts.step_breakdown import StepBreakdown
from clusterbench.formulas.attribution import EXPOSED, PARTS
from clusterbench.layout import AXES, REPLICA, SHARD, VIEWS
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def step(layout: str, world_size: int = 1, **parts: float) -> list[Row]:
    """Seconds of ``part`` or ``part__axis``."""
    planned, found = case(layout, world_size, point={"layout": layout, "shape": "tiny"}), []
    for name, seconds in parts.items():
        part, _, axis = name.partition("__")
        found.append(
            row(planned, "step_part", seconds, detail={"part": part, "axis": axis} if axis else {"part": part})
        )
    return found


TWO = [
    *step("tp1", compute=0.8, bubble=0.0, rest=0.2),
    *step("tp2", 2, compute=0.5, exposed_communication__tp=0.3, imbalance=0.15, bubble=0.0, rest=0.05),
]


def test_the_parts_are_stacked_to_the_step_and_a_part_that_nobody_has_is_left_out() -> None:
    (panel,) = StepBreakdown().draw(StepBreakdown().select(of_rows(TWO)) or [])
    assert [column.name for column in panel.columns] == [
        "bar", "compute", "exposed tp", "imbalance", "rest", "sum", "outcome",
    ]  # fmt: skip
    assert [entry.cells[:5] for entry in panel.entries] == [
        ("tp1", 0.8, None, None, 0.2),
        ("tp2", 0.5, 0.3, 0.15, 0.05),
    ]
    assert [entry.cells[5] for entry in panel.entries] == pytest.approx([1.0, 1.0])
    assert [entry.case for entry in panel.entries] == [row.case for row in (TWO[0], TWO[-1])]


def test_every_part_has_a_colour_of_its_own_and_the_same_in_every_run() -> None:
    parts = [(part, "") for part in PARTS if part != EXPOSED] + [
        (EXPOSED, axis) for axis in (*AXES, *VIEWS, SHARD, REPLICA)
    ]
    colours = part_colours(parts)
    assert len(set(colours.values())) == len(parts)
    assert part_colours([("rest", "")])["rest"] == colours["rest"]
    (panel,) = StepBreakdown().draw(StepBreakdown().select(of_rows(TWO)) or [])
    drawn = {bars.get_label(): bars.patches[0].get_facecolor() for bars in panel.figure.axes[0].containers}
    assert drawn["imbalance"] == to_rgba(*colours["imbalance"])


def test_the_answer_takes_the_largest_run_apart() -> None:
    assert StepBreakdown().answer(StepBreakdown().select(of_rows(TWO)) or []) == (
        "In a step of tp2, 50 % is computing, 30 % exposed tp communication, 15 % imbalance, 5 % the rest."
    )


def test_gpus_that_wait_for_their_hosts_are_named_with_what_shortens_it() -> None:
    def answer(rest: float, **changes: object) -> str:
        rows = [
            each._replace(device="cuda")
            for each in (*step("tp4", 4, compute=0.5, rest=0.1), *step("tp8", 8, compute=0.5, rest=rest))
        ]
        rows = [each._replace(point={**each.point, **changes}) for each in rows]
        return StepBreakdown().answer(StepBreakdown().select(of_rows(rows)) or [])

    assert answer(0.5).endswith(
        " GPUs wait for their hosts most in tp8, 50 % of its step: compile: true, or more tokens a micro-batch give "
        "them more to do at each launch."
    )
    assert answer(0.5, compile=True).endswith(
        "tp8, torch.compile, 50 % of its step: more tokens a micro-batch give them more to do at each launch."
    )
    assert "hosts most in tp4, 17 %" in answer(0.05)
    assert "hosts" not in StepBreakdown().answer(StepBreakdown().select(of_rows(TWO)) or [])


def test_of_equal_ranks_the_fastest_is_the_answer() -> None:
    rows = [*step("dp2", 2, compute=1.0), *step("tp2", 2, compute=3.0)]
    assert (
        StepBreakdown().answer(StepBreakdown().select(of_rows(rows)) or []) == "In a step of dp2, 100 % is computing."
    )


def test_a_case_that_ended_otherwise_keeps_its_place() -> None:
    lost = row(case("dp1", point={"layout": "dp2", "shape": "tiny"}), "", None, status="out_of_memory")
    bars = StepBreakdown().select(of_rows([lost, *TWO])) or []
    assert [(bar.label, len(bar.parts)) for bar in bars] == [("dp2", 0), ("tp1", 3), ("tp2", 5)]
    (panel,) = StepBreakdown().draw(bars)
    assert "× out of memory" in [text.get_text() for text in panel.figure.axes[0].texts]


@pytest.mark.parametrize("detail", [{}, {"part": "<script>"}, {"part": ""}])
def test_a_part_that_is_none_is_not_drawn(detail: dict[str, str]) -> None:
    planned = case("tp1", point={"layout": "tp1"})
    assert StepBreakdown().select(of_rows([row(planned, "step_part", 1.0, detail=detail)])) is None


def test_a_step_of_no_layout_is_not_drawn() -> None:
    assert StepBreakdown().select(of_rows([row(case("a"), "step_part", 1.0, detail={"part": "compute"})])) is None
