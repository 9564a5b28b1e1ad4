"""In every figure each case has a name of its own, whichever option of a training step a suite sweeps over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cases import Reading
from clusterbench.cases.names import apart
from clusterbench.charts import charts
from clusterbench.cluster import Cluster
from clusterbench.layout import ParallelLayout
from clusterbench.measured.scaling import scaling
from clusterbench.options import Option
from clusterbench.rows import Row
from clusterbench.types import Case, Place
from tests.report.synthetic import case, observation, outcome, reading, row
from tests.share import some_of

LAYOUTS = {
    "llama-tiny": ("tp1", "dp2", "dp4", "dp4+zero3", "tp2", "tp2+sp", "cp2", "pp2"),
    "moe-tiny": ("dp4", "dp4+ep4", "pp2-dp2+ep2"),
}
OPTIONS = {name: option for name, option in TrainStep.options().items() if not option.is_list}
FOLLOWING = [["F", 0, 0, 0.0, 0.1], ["B", 0, 0, 0.3, 0.5]], [["F", 1, 0, 0.1, 0.2], ["B", 1, 0, 0.2, 0.3]]
UNEVEN = {"rows": [[3, 5], [9, 7]], "experts": [[1, 2], [6, 3]]}


def values_of(option: Option) -> tuple[object, ...]:
    """Some that a suite may write: all kinds, or the default and another."""
    if option.choices is not None:
        return option.choices[:3]
    if option.kind is bool:
        return False, True
    another = 2 * option.default if option.default else 2 + (option.minimum or 0)
    return (option.default, option.kind(another), *((None,) if option.optional else ()))


def swept(name: str, values: tuple[object, ...]) -> Iterator[Case]:
    """A case for each value in each layout that it concerns, on two and on four ranks."""
    for shape, layouts in LAYOUTS.items():
        known = set()
        for value in values:
            asked = {"shape": shape, "global_batch_size": 16, "layouts": layouts, name: value}
            if name == "shape" and ("moe" in str(value)) != ("moe" in shape):
                asked["shape"] = shape
            for layout in layouts:
                world_size = ParallelLayout.parse(layout).world_size
                place = Place(Cluster(1, world_size, "cpu"), 1)
                (point,) = TrainStep.from_options({**asked, "layouts": (layout,)}).points(place)
                if tuple(point.items()) in known:
                    continue
                known.add(tuple(point.items()))
                label = f"{layout} {shape} {name}={value}"
                yield case(label, world_size, benchmark="train_step", layout=layout, point=point)


def figures(planned: Case) -> Iterator[Row]:
    """The same of every case, so that nothing but its name tells it from the others."""

    def figure(metric: str, value: float, unit: str = "s", **detail: str) -> Row:
        return row(planned, metric, value, unit=unit, detail=detail, expected=value)

    layout = ParallelLayout.parse(str(planned.point["layout"]))
    yield figure("step_time", 1.0)
    yield figure("tokens_per_s", 1e3 * planned.world_size, "tokens/s")
    yield figure("tokens_per_s_per_rank", 1e3, "tokens/s")
    for category in ("parameters", "gradients", "optimizer_state", "activations", "total"):
        yield figure("peak_memory", 2.0**20, "B", category=category)
    for category in ("parameters", "gradients", "optimizer_state"):
        yield figure("memory_at_rest", 2.0**20, "B", category=category)
    yield figure("traffic_bytes", 2.0**20, "B", axis="dp")
    yield figure("step_part", 0.75, part="compute")
    yield figure("step_part", 0.25, part="exposed_communication", axis="dp")
    for metric in ("mfu", "hfu"):
        yield figure(metric, 0.4, "fraction", flops_convention="palm", peak="measured")
    if layout.pp > 1:
        yield figure("bubble", 0.3, "fraction", source="measured")
    if "moe" in str(planned.point["shape"]):
        yield figure("expert_time", 0.1, part="products")
        yield figure("expert_imbalance", 1.4, "1", part="ranks")


def read(cases: list[Case]) -> Reading:
    rows = [figure for planned in cases for figure in figures(planned)]
    rows += scaling(rows)
    records = []
    for planned in cases:
        layout = ParallelLayout.parse(str(planned.point["layout"]))
        passes: dict[str, Any] = {"timeline": FOLLOWING} if layout.pp == 2 else {}
        passes |= {"experts": [UNEVEN] * planned.world_size} if "moe" in str(planned.point["shape"]) else {}
        records.append((outcome(planned), replace(observation(planned), passes=passes)))
    return reading(*records, cases=cases, rows=rows)


def named(read: Reading) -> dict[tuple[str, ...], set[str]]:
    """Chart, title of the panel and what an entry says in words -> the cases that are called so."""
    cases = defaultdict(set)
    for name, kind in charts().items():
        chart = kind()
        data = chart.select(read)
        for panel in [] if data is None else chart.draw(data):
            for entry in panel.entries:
                words = [cell for cell in entry.cells if isinstance(cell, str)]
                if entry.case:
                    cases[name, panel.title, *words].add(entry.case)
    return cases


@pytest.mark.parametrize("name", some_of([*OPTIONS], str))
def test_no_two_cases_of_a_figure_have_one_name(name: str) -> None:
    found = named(read(list(swept(name, values_of(OPTIONS[name])))))
    assert {called: cases for called, cases in found.items() if len(cases) > 1} == {}
    assert {"memory", "traffic", "step_breakdown"} <= {chart for chart, *_ in found}


def test_a_step_of_another_tool_is_named_in_the_words_of_ours() -> None:
    points = ({"layout": "dp8", "shape": shape, "micro_batch_size": mbs} for shape, mbs in (("a", 1), ("b", 2)))
    rows = [row(case(str(point), 8, benchmark="imported", point=point), "mfu", 0.5) for point in points]
    assert apart(rows) == ["a, mbs 1", "b, mbs 2"]


def test_a_sweep_of_compression_is_compared() -> None:
    cases = swept("compress", ("none", "bf16", "powersgd"))
    found = named(read([planned for planned in cases if planned.layout in ("dp2", "dp4")]))
    curves = {words[0] for chart, title, *words in found if chart == "scaling_efficiency" and "efficiency" in title}
    assert curves == {"dp", "dp, bf16 gradients", "dp, powersgd gradients"}
