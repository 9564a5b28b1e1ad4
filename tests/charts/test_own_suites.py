"""Each suite of training steps is answered by the chart of its question, whatever options its layouts have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbench.benchmarks import benchmarks
from clusterbench.cases import Reading
from clusterbench.charts import charts
from clusterbench.cluster import Cluster
from clusterbench.planning import make_plan
from clusterbench.rows import Row
from clusterbench.suite import load_suite
from clusterbench.types import Case
from tests.charts.steps import MIB
from tests.report.synthetic import of_rows, reading, row

SUITES = Path(__file__).parents[2] / "suites"
OWN_CHART = {
    "tp_scale": "tensor_scaling",
    "sp_scale": "tensor_scaling",
    "cp_scale": "context_scaling",
    "pp_schedules": "pipeline_bubble",
    "ep_scale": "expert_scaling",
    "zero_stages": "zero_stages",
    "recompute": "recompute",
    "memory_savings": "strategies",
    "layouts_5d": "layouts",
    "rank_order": "placements",
    "pp_vs_zero3": "batch_scaling",
    "engines": "trainers",
    "input_pipeline": "input_pipeline",
    "compression": "compression",
}
ON_GPUS = {
    "tp_scale": 2,
    "sp_scale": 3,
    "cp_scale": 4,
    "pp_schedules": 4,
    "ep_scale": 2,
    "zero_stages": 3,
    "recompute": 4,
    "compression": 2,
    "memory_savings": 4,
    "pp_vs_zero3": 4,
}
"""Lines of the answer on two nodes: one for each length, shape, layout or number of nodes that is drawn."""

ON_80_GB = {**ON_GPUS, "zero_stages": 2}
"""The same where cases that need more have no figure."""

TOTAL = "peak_memory[category=total]"
KEPT = ("parameters", "gradients", "optimizer_state")


def figures(of: Case, memory_bytes: float = math.inf) -> Iterator[Row]:
    """Everything that a training step may show, of a size that differs from layout to layout; nothing of what is too
    large for the memory."""
    if TOTAL in of.expected and of.expected[TOTAL].value > memory_bytes:
        yield row(of, "", None, status="out_of_memory")
        return
    layout = str(of.point["layout"])
    size = 9 * MIB / (1 + len(layout))
    yield row(of, "tokens_per_s_per_rank", 1000.0 - of.world_size, unit="tokens/s")
    yield row(of, "parity_loss", 1e-7, unit="1")
    for category in KEPT:
        yield row(of, "memory_at_rest", size, unit="B", detail={"category": category})
    for category in (*KEPT, "activations", "total"):
        yield row(of, "peak_memory", size, unit="B", detail={"category": category})
    if "pp" in layout:
        yield row(of, "bubble", 1.0 / (1 + len(str(of.point["schedule"]))), detail={"source": "measured"})
    if of.point.get("tokens") == "read":
        yield row(of, "step_time", 1.0)
        yield row(of, "token_wait", 0.1)
    if "routing" in of.point:
        for part in ("dispatch", "products", "combine"):
            yield row(of, "expert_time", 0.1, detail={"part": part})


def first_answer(read: Reading) -> tuple[str, str]:
    """The chart that answers first, and what it says."""
    drawn = ((name, kind(), kind().select(read)) for name, kind in charts().items() if not kind.is_aside)
    answers = ((own, chart.answer(data)) for own, chart, data in drawn if data is not None)
    return next(found for found in answers if found[1])


@pytest.mark.parametrize("name", OWN_CHART)
def test_it_is_where_what_needs_more_than_80_gb_has_no_figure(name: str) -> None:
    """Of 8 billion parameters two of the four ZeRO stages fit then, which are no comparison."""
    suite = load_suite(SUITES / f"{name}.yaml")
    planned = make_plan(suite, Cluster(2, 8, "cuda", "NVIDIA H100 80GB HBM3")).cases
    cases = [case for case in planned if case.benchmark == "train_step"]
    first, answer = first_answer(of_rows([each for case in cases for each in figures(case, 80e9)]))
    assert first == OWN_CHART[name]
    assert len(answer.splitlines()) == ON_80_GB.get(name, 1)


@pytest.mark.parametrize("cluster", ["cpu", "cuda"])
@pytest.mark.parametrize("name", OWN_CHART)
def test_a_suite_is_answered_by_the_chart_of_its_question(name: str, cluster: str) -> None:
    suite = load_suite(SUITES / f"{name}.yaml")
    ranks = Cluster(1, suite.cpu.num_ranks or 2, "cpu") if cluster == "cpu" else Cluster(2, 8, "cuda", "NVIDIA H200")
    cases = [case for case in make_plan(suite, ranks).cases if case.benchmark == "train_step"]
    first, answer = first_answer(of_rows([each for case in cases for each in figures(case)]))
    assert first == OWN_CHART[name]
    if cluster == "cuda":
        assert len(answer.splitlines()) == ON_GPUS.get(name, 1)


OF_PROBES = ("acceptance", "compute", "fabric", "gpu_direct", "links", "mpi", "nccl_collectives", "rdma", "storage")
OF_STEPS = {"train_step", "node_step"}
OF_PAIRS = {"link_matrix", "peer_copy", "nccl_transport"}
"""Whose rows name who sent to whom, and by which way: each has a chart, with tests of its own."""


@pytest.mark.parametrize("suite", OF_PROBES)
def test_every_probe_of_a_suite_is_drawn(suite: str) -> None:
    """Of compute 288 cases of matmul were in no chart, of rdma none at all; nor was any of it in an answer."""
    plan = make_plan(load_suite(SUITES / f"{suite}.yaml"), Cluster(4, 8, "cuda", "NVIDIA H100 80GB HBM3"))
    cases = [case for case in plan.cases if case.benchmark not in OF_STEPS | OF_PAIRS]
    rows = [
        row(case, kind.name, 1e6 + number, unit=kind.unit, device="cuda")
        for case in cases
        for number, kind in enumerate(benchmarks()[case.benchmark].metrics)
        if kind.name not in ("best_interval", "fit_error")
    ]
    read = reading(cases=cases, rows=rows)
    chosen = [(kind(), kind().select(read)) for name, kind in charts().items() if name != "stability"]
    panels = [panel for chart, data in chosen if data is not None for panel in chart.draw(data)]
    drawn = {entry.case for panel in panels for entry in panel.entries}
    of_case = {case.id: case.benchmark for case in cases}
    assert {of_case[case] for case in drawn if case in of_case} == {*of_case.values()}
