from typing import Any

from clusterbench.charts.scaling_efficiency import Scaled, ScalingEfficiency
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row

STRONG, WEAK = (
    "strong scaling: tokens/s per rank over those of tp1",
    "weak scaling: tokens/s per rank over those of tp1",
)


def runs(layout: str, world_size: int, value: float, *, weak: bool = False, nodes: int = 1, **point: Any) -> list[Row]:
    """An efficiency with its band, and the throughput behind it: 1,000 tokens/s on the smallest run."""
    batch = 8 * world_size if weak else 8
    options = {"shape": "tiny", "layout": layout, "global_batch_size": batch, **point}
    name = f"{nodes} {layout} {batch} {point}"
    planned = case(name, world_size, num_nodes=nodes, point=options, benchmark="train_step")
    basis, band = WEAK if weak and world_size > 1 else STRONG, {"low": 0.9 * value, "high": 1.1 * value}
    return [
        row(planned, "scaling_efficiency", value, unit="fraction", basis=basis, expected=1.0, **band),
        row(planned, "tokens_per_s_per_rank", 1000 * value, unit="tokens/s"),
    ]


def selected(*some: list[Row]) -> list[Scaled]:
    return ScalingEfficiency().select(of_rows([row for rows in some for row in rows])) or []


def curves(scaled: Scaled) -> dict[str, list[float | None]]:
    return {curve.name: [mark.value for mark in curve.marks] for curve in scaled.efficiency}


def test_every_kind_of_layout_starts_at_one_rank() -> None:
    data = selected(runs("tp1", 1, 1.0), runs("tp2", 2, 0.8), runs("tp2+sp", 2, 0.7), runs("dp2", 2, 0.9))
    assert [curves(scaled) for scaled in data] == [{"dp": [1.0, 0.9], "tp": [1.0, 0.8], "tp+sp": [1.0, 0.7]}]
    assert ScalingEfficiency().answer(data) == "At 2 ranks the best layout, dp, keeps 90 % of the throughput per rank."


def test_of_layouts_with_equal_ranks_the_best_is_drawn() -> None:
    (scaled,) = selected(runs("pp2-tp2", 4, 1.0), runs("pp2-tp4", 8, 0.5), runs("pp4-tp2", 8, 0.6))
    assert curves(scaled) == {"pp-tp": [1.0, 0.6]}


def test_a_kind_without_a_run_at_the_smallest_size_starts_at_what_it_is_held_against() -> None:
    (scaled,) = selected(
        runs("tp8", 8, 1.0), runs("pp2-tp4", 8, 0.9), runs("dp2-tp8", 16, 0.8), runs("pp4-tp4", 16, 0.7)
    )
    assert curves(scaled) == {"dp-tp": [1.0, 0.8], "pp-tp": [0.9, 0.7]}


def test_each_way_of_recomputing_starts_at_its_own_smallest_run() -> None:
    again = {"recompute": "full"}
    (scaled,) = selected(
        runs("tp1", 1, 1.0, recompute="none"),
        runs("tp2", 2, 0.8, recompute="none"),
        [*runs("tp1", 1, 1.0, **again)[:1], runs("tp1", 1, 0.7, **again)[1]],
        [*runs("tp2", 2, 0.9, **again)[:1], runs("tp2", 2, 0.63, **again)[1]],
    )
    assert curves(scaled) == {"tp": [1.0, 0.8], "tp, full recompute": [1.0, 0.9]}
    rates = {curve.name: [mark.value for mark in curve.marks] for curve in scaled.throughput}
    assert rates == {"tp": [1000.0, 1600.0], "tp, full recompute": [700.0, 1260.0]}
    assert scaled.of_smallest is None


def test_a_run_that_others_are_held_against_may_be_held_against_a_smaller_one() -> None:
    """With 2 and 4 sequences a rank: dp2 with 8 sequences is weak scaling of tp1, and dp4 strong scaling of it."""
    data = selected(
        runs("tp1", 1, 1.0, global_batch_size=4),
        runs("dp2", 2, 0.9, weak=True, global_batch_size=8),
        runs("dp4", 4, 0.72, global_batch_size=8),
    )
    assert [(scaled.sweep.title, curves(scaled)) for scaled in data] == [
        ("Strong scaling", {"dp": [1.0, 0.72]}),
        ("Weak scaling", {"dp": [1.0, 0.9]}),
    ]
    titles = [panel.title for panel in ScalingEfficiency().draw(data)]
    assert not any("tp1" in title for title in titles)


def test_steps_without_a_batch_are_held_against_each_other() -> None:
    (scaled,) = selected(runs("tp1", 1, 1.0, global_batch_size=None), runs("tp2", 2, 0.8, global_batch_size=None))
    assert curves(scaled) == {"tp": [1.0, 0.8]}


def test_one_size_alone_shows_nothing() -> None:
    assert ScalingEfficiency().select(of_rows(runs("tp2", 2, 1.0))) is None


def test_weak_scaling_has_panels_of_its_own_and_starts_at_the_smallest_run() -> None:
    data = selected(
        runs("tp1", 1, 1.0), runs("tp2", 2, 0.8), runs("dp2", 2, 0.95, weak=True), runs("dp4", 4, 0.9, weak=True)
    )
    assert [(scaled.sweep.title, curves(scaled)) for scaled in data] == [
        ("Strong scaling", {"tp": [1.0, 0.8]}),
        ("Weak scaling", {"dp": [1.0, 0.95, 0.9]}),
    ]
    assert [panel.title for panel in ScalingEfficiency().draw(data)] == [
        "Strong scaling: efficiency",
        "Strong scaling: tokens per second of all ranks",
        "Weak scaling: efficiency",
        "Weak scaling: tokens per second of all ranks",
    ]


def test_where_several_numbers_of_nodes_ran_they_are_counted() -> None:
    (scaled,) = selected(
        runs("dp4", 4, 1.0), runs("dp8", 8, 0.9), runs("dp16", 16, 0.8, nodes=2), runs("dp32", 32, 0.7, nodes=4)
    )
    assert [(mark.x, mark.value) for mark in scaled.efficiency[0].marks] == [(1, 0.9), (2, 0.8), (4, 0.7)]
    (panel, _) = ScalingEfficiency().draw([scaled])
    assert panel.figure.axes[0].get_xlabel() == "nodes"


def test_the_band_of_the_repeats_is_drawn_behind_the_points() -> None:
    (scaled,) = selected(runs("tp1", 1, 1.0), runs("tp2", 2, 0.8))
    panel, _ = ScalingEfficiency().draw([scaled])
    assert panel.entries[1].cells == ("tp", "2", 0.8, 0.9 * 0.8, 1.1 * 0.8, None, "")


def test_tokens_per_second_of_all_ranks_stand_beside_the_level_of_the_smallest_run() -> None:
    """Page review B4: the throughput per rank stood twice in a page, and nowhere that 4 ranks are slower than 1."""
    (scaled,) = selected(runs("tp1", 1, 1.0), runs("tp2", 2, 0.8), runs("tp4", 4, 0.1))
    _, panel = ScalingEfficiency().draw([scaled])
    assert [entry.cells[2] for entry in panel.entries] == [1000.0, 1600.0, 400.0]
    assert scaled.of_smallest == 1000.0


def test_two_workloads_are_named() -> None:
    data = selected(
        runs("tp1", 1, 1.0, seq_len=64),
        runs("tp2", 2, 0.8, seq_len=64),
        runs("tp1", 1, 1.0, seq_len=128),
        runs("tp2", 2, 0.9, seq_len=128),
    )
    assert [scaled.sweep.name for scaled in data] == ["seq 64", "seq 128"]
    # of one layout none is the best
    assert ScalingEfficiency().answer(data) == "seq 64: at 2 ranks tp keeps 80 % of the throughput per rank."


def test_the_best_layout_is_named_though_it_is_not_drawn() -> None:
    kinds = ("dp2", "dp2+zero1", "dp2+zero2", "dp2+zero3", "pp2", "cp2", "tp2", "tp2+sp")
    data = selected(runs("tp1", 1, 1.0), *(runs(kind, 2, 0.9 if kind == "tp2+sp" else 0.5) for kind in kinds))
    assert ScalingEfficiency().answer(data) == (
        "At 2 ranks the best layout, tp+sp, keeps 90 % of the throughput per rank."
    )


def test_what_keeps_most_of_its_own_start_is_not_called_the_best() -> None:
    again = {"recompute": "full"}
    data = selected(
        runs("tp1", 1, 1.0, recompute="none"),
        runs("tp2", 2, 0.8, recompute="none"),
        [*runs("tp1", 1, 1.0, **again)[:1], runs("tp1", 1, 0.7, **again)[1]],
        [*runs("tp2", 2, 0.9, **again)[:1], runs("tp2", 2, 0.63, **again)[1]],
    )
    assert ScalingEfficiency().answer(data) == (
        "At 2 ranks tp, full recompute keeps most of the throughput per rank of what it is held against, 90 %."
    )
