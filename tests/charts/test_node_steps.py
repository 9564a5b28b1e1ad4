from collections.abc import Sequence

import pytest

from clusterbench.charts.node_steps import MOST, Nodes, NodeSteps
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row


def on_nodes(times_s: Sequence[float], spread: float = 0.01, layout: str = "dp2") -> list[Row]:
    """The steps of one case on nodes n0, n1, ..., in their order."""
    of = case(layout, 2 * len(times_s), benchmark="node_step", layout=layout, point={"layout": layout})
    return [
        row(of, value=time_s, low=time_s * (1 - spread), high=time_s * (1 + spread), detail={"part": f"n{node}"})
        for node, time_s in enumerate(times_s)
    ]


def drawn(rows: list[Row]) -> list[Nodes]:
    data = NodeSteps().select(of_rows(rows))
    assert data is not None
    return data


@pytest.mark.parametrize("count", [2, 3, 8, 33, 64, 448])
def test_the_slowest_of_any_number_of_nodes_stands_first_and_is_named(count: int) -> None:
    times_s = [0.100 + 1e-5 * node for node in range(count)]
    times_s[count // 2] = 0.162
    data = drawn(on_nodes(times_s))
    (panel,) = NodeSteps().draw(data)
    assert panel.entries[0].cells[:2] == (f"n{count // 2}", 0.162)
    assert len(panel.entries) == count
    axes = panel.figure.axes[0]
    assert axes.get_xticklabels()[0].get_text() == f"n{count // 2}"
    assert len(axes.get_xticks()) <= 32
    assert f"Of {count} nodes n{count // 2} is the slowest: its step takes 162 ms" in NodeSteps().answer(data)


def test_it_says_by_how_much_of_the_median_and_of_two_nodes_of_the_other() -> None:
    assert NodeSteps().answer(drawn(on_nodes([0.1, 0.101, 0.150, 0.099]))) == (
        "Of 4 nodes n2 is the slowest: its step takes 150 ms, 49 % longer than the median of nodes (100 ms)."
    )
    assert NodeSteps().answer(drawn(on_nodes([0.1, 0.15]))) == (
        "Of 2 nodes n1 is the slowest: its step takes 150 ms, 50 % longer than n0 (100 ms)."
    )


def test_a_node_that_is_no_slower_than_its_own_steps_differ_is_not_marked() -> None:
    data = drawn(on_nodes([0.1, 0.101, 0.102], spread=0.05))
    assert not data[0].stands_out
    assert NodeSteps().answer(data).endswith("the median of nodes (101 ms); its own steps differ by as much.")
    assert drawn(on_nodes([0.1, 0.101, 0.12], spread=0.05))[0].stands_out


def test_of_several_steps_each_has_a_panel_and_a_line() -> None:
    layouts = [f"dp{2**number}" for number in range(1, MOST + 2)]
    data = drawn([of for layout in layouts for of in on_nodes([0.1, 0.12], layout=layout)])
    assert len(NodeSteps().draw(data)) == MOST
    assert NodeSteps().answer(data).splitlines()[1].startswith("dp4: of 2 nodes n1 is the slowest")
    assert NodeSteps().left_out(data).startswith(f"Drawn are the first {MOST} of {MOST + 1} steps")


def test_one_node_and_a_step_of_all_nodes_show_nothing() -> None:
    assert NodeSteps().select(of_rows(on_nodes([0.1]))) is None
    other = case("dp2", 2, benchmark="train_step", layout="dp2", point={"layout": "dp2"})
    assert NodeSteps().select(of_rows([row(other), row(other)])) is None
