from clusterbench.charts.scaling_efficiency import ScalingEfficiency
from clusterbench.rows import Row
from tests.report.synthetic import case, row


def efficiency(layout: str, world_size: int, value: float) -> Row:
    one = case(layout, world_size, point={"shape": "tiny", "layout": layout})
    return row(one, "scaling_efficiency", value, unit="fraction")


def test_every_kind_of_layout_starts_at_one_rank() -> None:
    rows = [
        efficiency("tp1", 1, 1.0),
        efficiency("tp2", 2, 0.8),
        efficiency("tp2+sp", 2, 0.7),
        efficiency("dp2", 2, 0.9),
    ]
    series = ScalingEfficiency().select(rows) or []
    assert {one.name: [mark.value for mark in one.marks] for one in series} == {
        "dp": [1.0, 0.9],
        "tp": [1.0, 0.8],
        "tp+sp": [1.0, 0.7],
    }
    assert (
        ScalingEfficiency().answer(series) == "At 2 ranks the best layout, dp, keeps 90 % of the throughput per rank."
    )


def test_of_layouts_with_equal_ranks_the_best_is_drawn() -> None:
    rows = [
        efficiency("pp2", 2, 1.0),
        efficiency("pp2-tp4", 8, 0.5),
        efficiency("pp4-tp2", 8, 0.6),
        efficiency("pp2-tp2", 4, 1),
    ]
    kinds = {one.name: [mark.value for mark in one.marks] for one in ScalingEfficiency().select(rows) or []}
    assert kinds == {"pp-tp": [1, 0.6]}


def test_one_size_alone_shows_nothing() -> None:
    assert ScalingEfficiency().select([efficiency("tp2", 2, 1.0)]) is None
