from dataclasses import replace
from typing import Any

import pytest

from clusterbench.cases import Reading
from clusterbench.charts.memory import Bar, Held, Memory
from clusterbench.charts.zero_stages import ZeroStages
from clusterbench.cluster import Cluster
from clusterbench.drawing.panel import Panel
from clusterbench.rows import Row
from tests.report.synthetic import case, of_rows, row
from tests.report.synthetic import reading as read

GIB = 2**30
H100 = Cluster(1, 8, "cuda", "NVIDIA H100 80GB HBM3")


def memory(layout: str, total: float, seq_len: int = 0, **parts: float) -> list[Row]:
    planned = case(layout, point={"layout": layout, **({"seq_len": seq_len} if seq_len else {})})
    rows = [row(planned, "peak_memory", size, unit="B", detail={"category": name}) for name, size in parts.items()]
    return [*rows, row(planned, "peak_memory", total, unit="B", detail={"category": "total"})]


def held(rows: list[Row]) -> Held:
    found = Memory().select(of_rows(rows))
    assert found is not None
    return found


def bars(rows: list[Row]) -> list[Bar]:
    return held(rows).bars


def measured(rows: list[Row], cluster: Cluster = H100, environment: Any = None) -> Held:
    """The same as part of a run on this cluster."""
    found = read(cases=[], rows=rows)
    run = Reading("run", replace(found.plan, cluster=cluster), (), rows, environment or {})
    data = Memory().select(run)
    assert data is not None
    return data


def driver(*sizes: Any) -> dict[str, Any]:
    return {"hosts": {f"gpu-{number:02}": {"gpus": [{"memory_bytes": size}]} for number, size in enumerate(sizes)}}


def test_parts_are_stacked_and_the_whole_is_not_one_of_them() -> None:
    (bar,) = bars(memory("tp2", 20, parameters=10, gradients=15, reserved=64))
    assert bar.parts == {"parameters": 10, "gradients": 15}
    assert bar.total == 20


def test_the_whole_stands_beside_the_bar_and_not_the_sum_of_peaks() -> None:
    (figure,) = Memory().draw(held(memory("tp2", 20, parameters=10, gradients=15)))
    assert [text.get_text() for text in figure.figure.axes[0].texts] == ["20"]


def colours(panel: Panel) -> dict[str, object]:
    return {bars.get_label(): bars.patches[0].get_facecolor() for bars in panel.figure.axes[0].containers}


def test_a_category_has_one_place_and_one_colour_in_every_chart_and_run() -> None:
    (all_of_them,) = Memory().draw(held(memory("tp2", 20, optimizer_state=9, activations=5, parameters=7, workspace=1)))
    (few,) = Memory().draw(held(memory("tp2", 20, workspace=1, activations=5)))
    (at_rest, *_) = ZeroStages().draw([list(of_rows([*memory("dp2", 9, optimizer_state=9), *_at_rest("dp2")]).trained)])
    assert list(colours(all_of_them)) == ["parameters", "optimizer state", "activations", "workspace"]
    assert len(set(colours(all_of_them).values())) == 4
    assert colours(few).items() <= colours(all_of_them).items()
    assert colours(at_rest) == {"optimizer state": colours(all_of_them)["optimizer state"]}


def _at_rest(layout: str) -> list[Row]:
    planned = case(layout, point={"layout": layout})
    return [row(planned, "memory_at_rest", 9.0, unit="B", detail={"category": "optimizer_state"})]


def test_what_was_expected_of_a_part_is_a_tick_at_its_end() -> None:
    planned = case("tp2", point={"layout": "tp2"})
    rows = [
        row(planned, "peak_memory", 10.0, unit="B", detail={"category": "parameters"}),
        row(planned, "peak_memory", 8.0, unit="B", detail={"category": "gradients"}, expected=9.0),
    ]
    (figure,) = Memory().draw(held(rows))
    (ticks,) = [line for line in figure.figure.axes[0].lines if line.get_label() == "expected"]
    assert list(ticks.get_xdata()) == [19.0]


def test_out_of_memory_keeps_its_place_among_the_bars() -> None:
    lost = row(case("tp1", point={"layout": "tp1"}), "", None, status="out_of_memory")
    data = held([lost, *memory("tp2", 10, parameters=10)])
    assert [(bar.label, bar.status) for bar in data.bars] == [("tp1", "out_of_memory"), ("tp2", "ok")]
    (figure,) = Memory().draw(data)
    assert "× out of memory" in [text.get_text() for text in figure.figure.axes[0].texts]


def test_all_that_ran_out_of_memory_is_drawn_and_counted_as_the_verdict_counts_it() -> None:
    """Of one schedule no case fits: its workload has no parts, and was missing from bars and sentence."""
    rows = memory("pp2", 20 * GIB, parameters=10 * GIB, seq_len=256)
    options = {"layout": "pp4", "seq_len": 512}
    lost = row(case("pp4", point=options), "", None, status="out_of_memory")
    slow = row(case("tp4", point={**options, "layout": "tp4"}), "", None, status="timeout")
    data = measured([*rows, lost, slow])
    assert [bar.status for bar in data.bars] == ["ok", "out_of_memory"]
    assert Memory().answer(data).endswith("; 1 case ran out of memory.")


def test_a_long_name_is_whole_in_the_sentence() -> None:
    """Of ``dp2-cp4-tp2+sp+ep2, ..., olmoe-1b-7b, 2 nodes`` the page said ``2 n… holds most``."""
    options = {"shape": "a-shape-with-a-name-of-some-length", "recompute": "selective", "context": "zigzag"}
    planned = case("a", point={"layout": "pp2-dp2-cp2-tp2+sp+ep4+zero1", "schedule": "1f1b", **options})
    of = "category"
    rows = [row(planned, "peak_memory", 9.0, unit="B", detail={of: name}) for name in ("parameters", "total")]
    other = case("b", point={**planned.point, "shape": "b"})
    rows += [row(other, "peak_memory", 1.0, unit="B", detail={of: name}) for name in ("parameters", "total")]
    data = measured(rows)
    assert len(data.bars[0].label) > 72
    assert Memory().answer(data).startswith(f"{data.bars[0].label} holds most, ")


def test_without_parts_there_is_nothing_to_stack() -> None:
    assert Memory().select(of_rows([row(case("a"))])) is None


def test_what_the_driver_says_is_the_capacity_and_the_least_of_several() -> None:
    data = measured(memory("tp2", 60 * GIB, parameters=50 * GIB), environment=driver(80 * GIB, 79 * GIB))
    assert Memory().answer(data) == (
        "tp2 holds most, 60GiB on its fullest rank, 76 % of what the GPU has (79GiB, as its driver says)."
    )
    axes = Memory().draw(data)[0].figure.axes[0]
    assert "capacity 79" in [text.get_text() for text in axes.texts]
    assert axes.get_xlim()[1] > 79


def test_without_a_driver_the_data_sheet_is_it_and_says_so() -> None:
    lost = row(case("tp1", point={"layout": "tp1"}), "", None, status="out_of_memory")
    data = measured([lost, *memory("tp2", 40e9, parameters=30e9)])
    assert Memory().answer(data) == (
        "tp2 holds most, 37.25GiB on its fullest rank, 50 % of what the GPU has (74.51GiB, as its data sheet says); 1 "
        "case ran out of memory."
    )


@pytest.mark.parametrize(
    "cluster", [Cluster(1, 4, "cpu"), Cluster(1, 8, "cuda", "a GPU that nobody has recorded"), Cluster(1, 8, "cuda")]
)
def test_an_unknown_capacity_is_no_line_and_no_answer(cluster: Cluster) -> None:
    data = measured(memory("tp2", 20, parameters=10), cluster)
    assert data.capacity is None
    assert Memory().answer(data) == ""
    assert len(Memory().draw(data)[0].figure.axes[0].texts) == 1


def test_a_capacity_far_beyond_the_bars_is_said_at_the_axis() -> None:
    axes = Memory().draw(measured(memory("tp2", GIB, parameters=GIB), environment=driver(80 * GIB)))[0].figure.axes[0]
    assert axes.get_xlabel() == "GiB (capacity is 80 GiB)"
    assert axes.get_xlim()[1] < 2


@pytest.mark.parametrize("value", [None, True, 0, -1, float("nan"), float("inf"), 10**400, "80 GiB", [], {}])
def test_a_damaged_capacity_is_none(value: Any) -> None:
    rows = memory("tp2", 20, parameters=10)
    unknown = Cluster(1, 8, "cuda")
    for environment in (driver(value), {"hosts": value}, {"hosts": {"a": value}}, {"hosts": {"a": {"gpus": value}}}):
        assert measured(rows, unknown, environment).capacity is None
