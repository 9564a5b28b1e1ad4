"""What no device can reach is void with all that rests on the same time, and what one can reach never is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterbench.benchmarks.matmul import Matmul
from clusterbench.benchmarks.train_step import TrainStep
from clusterbench.cluster import Cluster
from clusterbench.derive import read
from clusterbench.diagnoses import examine
from clusterbench.diagnoses.beyond_bound import BeyondBound
from clusterbench.measured.bounds import BEYOND, without_impossible
from clusterbench.planning import make_plan
from clusterbench.run_folder import RunFolder
from clusterbench.suite import load_suite
from clusterbench.types import Case, Expected, Metric, Observation, Place
from clusterbench.verdict import verdict
from tests.report.synthetic import observation, outcome, reading, row

H100 = Cluster(1, 8, "cuda", "NVIDIA H100 80GB HBM3")
LLAMA = {"shape": "llama-8b", "seq_len": 8192, "global_batch_size": 8, "dtype": "bfloat16"}


def stepped(mfu: float, seen: dict[str, Any] | None = None, **options: Any) -> dict[str, Metric]:
    """The figures of a step on eight H100 that takes as long as this share of the peak says, causal."""
    place = Place(H100, 1)
    benchmark = TrainStep.from_options({"layouts": ("tp8",), **LLAMA, **options})
    (point,) = benchmark.points(place)
    case = Case("c", "train_step", 1, point, "cuda", 1, 8, 1, 1, 60.0, expected=benchmark.predict(point, place))
    time_s = case.expected["step_time"].value / mfu
    observation = Observation("c", "h", 1, 1, ("a",), [[time_s] * 3] * 8, passes=seen or {})
    return {each.key: each for each in without_impossible(case, list(TrainStep.derive(case, observation, place)), H100)}


def void(figures: dict[str, Metric]) -> set[str]:
    return {each.name for each in figures.values() if each.value is None and each.basis.startswith(BEYOND)}


@pytest.mark.parametrize("mfu", [0.4, 0.99, 1.08])
def test_up_to_a_higher_clock_than_the_sheets_nothing_is_void(mfu: float) -> None:
    assert void(stepped(mfu)) == set()


def test_a_step_that_is_faster_than_the_peak_keeps_its_time_alone() -> None:
    figures = stepped(1.2)
    rates = {"tokens_per_s", "tokens_per_s_per_rank", "model_flops_per_s_per_rank", "mfu", "hfu"}
    assert void(figures) == rates
    assert all(each.value is None for each in figures.values() if each.name in rates)
    assert figures["step_time"].value is not None
    assert "is above" in figures["tokens_per_s"].basis
    assert "at most" not in figures["tokens_per_s"].basis  # it read 'is above 46,236 tokens/s, at most; model FLOPs'


def test_a_step_that_executes_more_than_the_peak_is_beyond_it_though_the_model_needs_less() -> None:
    """Layers are computed four times in place of three, and the head three times: an HFU below 4/3 of the MFU."""
    figures = stepped(0.95, recompute="full")
    assert void(figures) == {"tokens_per_s", "tokens_per_s_per_rank", "model_flops_per_s_per_rank", "mfu", "hfu"}
    assert figures["tokens_per_s"].basis.startswith(f"{BEYOND}: hfu 1.18 is above 1, ")


def test_energy_rests_on_the_time_too() -> None:
    case = Case("c", "train_step", 1, {}, "cuda", 1, 8, 1, 1, 60.0)
    detail = {"flops_convention": "causal", "peak": "datasheet"}
    metrics = [Metric("mfu", "fraction", 1.2, detail=detail), Metric("energy_per_token", "J/token", 0.1)]
    assert [each.value for each in without_impossible(case, metrics, H100)] == [None, None]


def test_a_step_in_float8_is_bound_by_the_peak_of_float8_and_told_by_both() -> None:
    options = {"float8": "tensorwise", "layouts": ("dp8",)}
    figures = stepped(0.7, **options)  # 1.4 times the peak of bfloat16
    assert void(figures) == set()
    of_float8, of_bfloat16 = (
        figures[f"mfu[flops_convention=causal,peak={peak}]"].value for peak in ("datasheet", "datasheet bfloat16")
    )
    assert of_float8 == pytest.approx(0.7)
    assert of_bfloat16 == pytest.approx(0.7 * 1979 / 989)
    assert "mfu" in void(stepped(1.2, **options))


def test_palm_counts_what_is_not_computed_and_may_be_above_the_peak() -> None:
    figures = stepped(0.9, seq_len=131072, global_batch_size=1)
    assert (figures["mfu[flops_convention=palm,peak=datasheet]"].value or 0.0) > 1.1
    assert void(figures) == set()


def test_more_memory_than_the_gpu_has_is_void_and_nothing_else_is() -> None:
    memory = [{"total": 70 * 10**9, "allocated": 95 * 10**9}] * 8
    figures = stepped(0.4, {"memory": memory})
    assert void(figures) == {"peak_memory"}
    assert figures["peak_memory[category=total]"].value == 70e9
    assert figures["peak_memory[category=allocated]"].value is None


def test_a_product_above_the_dense_peak_is_void_where_the_device_is_known() -> None:
    place = Place(H100, 1)
    benchmark = Matmul.from_options({"sizes": (4096,), "dtype": "bfloat16"})
    point = next(iter(benchmark.points(place)))
    expected = benchmark.predict(point, place)
    case = Case("m", "matmul", 1, point, "cuda", 1, 1, 1, 1, 60.0, expected=expected)
    fast = Metric("flops_per_s_per_rank", "FLOP/s", 1.2 * 989e12)
    assert without_impossible(case, [fast], H100)[0].value is None
    assert without_impossible(replace(case, expected={}), [fast], Cluster(1, 8, "cpu"))[0].value == fast.value
    (usual,) = without_impossible(case, [fast._replace(value=700e12)], H100)
    assert usual.value == 700e12


def bus(busbw: float, benchmark: str = "all_reduce", num_nodes: int = 1, group_size: int | None = None) -> Metric:
    """On hosts with eight H100, whose links carry 450 GB/s one way."""
    ranks = 8 * num_nodes
    point = {"size_bytes": 2**30, "group_size": group_size or ranks}
    of = Case("c", benchmark, 1, point, "cuda", num_nodes, ranks, 1, 1, 60.0)
    cluster = replace(H100, num_nodes=num_nodes)
    (metric,) = without_impossible(of, [Metric("busbw", "B/s", busbw, busbw, busbw)], cluster)
    return metric


@pytest.mark.parametrize(("benchmark", "most"), [("all_reduce", 450e9 * 2 * 7 / 8), ("all_gather", 450e9)])
def test_a_bus_bandwidth_above_the_link_is_void_inside_a_host(benchmark: str, most: float) -> None:
    assert bus(1.09 * most, benchmark).value is not None
    above = bus(1.11 * most, benchmark)
    assert (above.value, above.low) == (None, 1.11 * most)
    assert "the link of one GPU, one direction" in above.basis


def test_of_two_ranks_along_an_axis_a_switch_spares_nothing() -> None:
    """Each of two GPUs receives what the other has, whoever adds it up: 2 (n-1)/n is 1."""
    assert bus(490e9, group_size=2).value is not None
    assert bus(500e9, group_size=2).value is None


def test_what_the_switch_may_add_and_what_lies_between_hosts_is_not_bound() -> None:
    assert bus(480e9).value is not None  # NVLink SHARP, published for eight H100
    assert bus(2e12, num_nodes=2).value is not None
    assert bus(2e12, "broadcast").value is not None


def test_what_is_no_bound_may_be_exceeded_whatever_its_basis_says() -> None:
    case = Case("m", "matmul", 1, {}, "cuda", 1, 1, 1, 1, 60.0)
    fast = Metric("flops_per_s_per_rank", "FLOP/s", 1.2 * 989e12)
    for is_bound, value in ((True, None), (False, fast.value)):
        planned = Expected(989e12, "FLOP/s", "an upper bound, in words", is_upper_bound=is_bound)
        asked = replace(case, expected={fast.key: planned})
        assert without_impossible(asked, [fast], H100)[0].value == value


@pytest.mark.parametrize("suite", ["compute", "fabric", "gpu_direct", "links", "tp_scale"])
def test_what_is_called_a_bound_in_words_is_planned_as_one(suite: str) -> None:
    path = Path(__file__).parents[2] / "suites" / f"{suite}.yaml"
    for case in make_plan(load_suite(path), H100).cases:
        for key, planned in case.expected.items():
            said = "upper bound" in planned.basis or planned.basis.startswith("at most; model FLOPs")
            assert planned.is_upper_bound == said, (case.id, key, planned)


@pytest.mark.parametrize(("faster", "word"), [(10.0, "WRONG"), (1.3, "COMPLETE")])
def test_one_repeat_that_is_faster_than_the_peak_makes_the_case_wrong(tmp_path: Path, faster: float, word: str) -> None:
    """Of four repeats one at ten times the dense peak was 'COMPLETE, unsteady': the median of all was below."""
    suite = tmp_path / "s.yaml"
    suite.write_text("suite: s\nrepeats: 4\nbenchmarks:\n  - {benchmark: matmul, sizes: [8192], dtype: bfloat16}\n")
    plan = make_plan(load_suite(suite), replace(H100, ranks_per_node=1, hosts=("n1",)))
    run = RunFolder.create(tmp_path / "run", suite.read_bytes(), plan, {})
    (product,) = plan.cases
    for repeat, factor in enumerate((1, 1, faster, 1)):
        time_s = 2 * 8192**3 / 700e12 / factor
        seen = observation(product, [[time_s * (1 + each % 3 / 1000) for each in range(20)]], repeat=repeat)
        run.record(outcome(product, repeat=repeat), seen)
    found = read(run)
    said = verdict(found, examine(found))
    assert said.measured.word == word, said.text()
    if word == "WRONG":
        assert said.exit_code == 1
        assert "TFLOP/s is above 989.0 TFLOP/s" in said.measured.sentence
        assert ", in repeat 3" in said.measured.sentence


def test_it_is_one_error_a_case() -> None:
    case = Case("c", "train_step", 1, {}, "cuda", 1, 8, 1, 1, 60.0)
    basis = f"{BEYOND}: mfu 1.2 is above 1, dense peak"
    rows = [row(case, name, None, basis=basis) for name in ("mfu", "hfu")]
    (finding,) = BeyondBound().findings(reading(cases=[case], rows=rows))
    assert (finding.where, finding.what, finding.severity) == ("c", "mfu 1.2 is above 1, dense peak", "error")
