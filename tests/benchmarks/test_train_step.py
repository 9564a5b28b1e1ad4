"""What train_step plans, refuses, expects and derives, without torch; and one real case on Gloo ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterbench.benchmarks import benchmarks
from clusterbench.benchmarks.train_step import TrainStep, formulas_of
from clusterbench.cluster import Cluster
from clusterbench.errors import LayoutError
from clusterbench.job.passes import Executed
from clusterbench.launch.dry import dry_plan
from clusterbench.layout import every_layout
from clusterbench.measured.step_parts import detail_of
from clusterbench.options import options_of
from clusterbench.parallel import PHASES, parallelisms
from clusterbench.planning import make_plan
from clusterbench.rows import Row
from clusterbench.suite import load_suite
from clusterbench.types import Case, Expected, Metric, Observation, Place
from tests.benchmarks.alone import derived as derived_at
from tests.ranks import run_ranks

CPU4 = Place(Cluster(1, 4, "cpu"), 1)
H100 = Place(Cluster(1, 8, "cuda", "NVIDIA H100 80GB HBM3"), 1)


def objection(layout: str, place: Place = CPU4, **options: Any) -> str | None:
    benchmark = TrainStep.from_options({"layouts": (layout,), **options})
    (point,) = benchmark.points(place)
    return benchmark.objection(point, place)


def test_a_point_says_everything() -> None:
    (point,) = TrainStep.from_options({"layouts": ("dp*-tp2+sp",), "loss_parallel": False}).points(CPU4)
    assert dict(point) == {
        "layout": "dp2-tp2+sp",
        "shape": "llama-tiny",
        "seq_len": 256,
        "global_batch_size": 8,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "pp": 1,
        "dp": 2,
        "cp": 1,
        "tp": 2,
        "sp": True,
        "ep": 1,
        "zero": 0,
        "dtype": "float32",
        "rank_order": "megatron",
        "seed": 0,
        "max_grad_norm": 1.0,
        "parity": True,
        "recompute": "none",
        "loss_parallel": False,
        "compile": False,
        "compress": "none",
        "powersgd_rank": 1,
    }


def test_all_stands_for_every_layout_on_the_ranks_there_are() -> None:
    points = [point["layout"] for point in TrainStep.from_options({"layouts": ("tp1", "all")}).points(CPU4)]
    assert points == ["tp1", *map(str, every_layout(4))]
    on_six = Place(Cluster(2, 6, "cpu"), 2)
    points = [point["layout"] for point in TrainStep.from_options({"layouts": ("all",)}).points(on_six)]
    assert {"pp3-dp4", "dp4-tp3+sp", "pp2-tp6+sp"} < set(points)


def test_options_of_a_parallelism_a_layout_does_not_use_are_not_in_its_point() -> None:
    (point,) = TrainStep.from_options({"layouts": ("dp4",)}).points(CPU4)
    assert "loss_parallel" not in point
    assert point["recompute"] == "none"


def test_an_option_without_effect_is_named() -> None:
    alone = TrainStep.from_options({"layouts": ("dp4",), "loss_parallel": False})
    assert list(alone.ineffective(["layouts", "loss_parallel"], CPU4)) == [
        ("loss_parallel", "it belongs to TensorParallel, which none of the layouts dp4 uses")
    ]
    mixed = TrainStep.from_options({"layouts": ("dp4", "tp4"), "loss_parallel": False})
    assert list(mixed.ineffective(["layouts", "loss_parallel"], CPU4)) == []


def test_every_option_of_a_parallelism_is_one_of_the_benchmark_and_of_no_other() -> None:
    names = set(options_of(TrainStep))
    for name, kind in parallelisms().items():
        assert kind.phase in PHASES, name
        assert not names & options_of(kind).keys(), name
        names |= options_of(kind).keys()
    assert names == set(TrainStep.options())


def test_dropout_is_refused_with_the_reason() -> None:
    assert "none of the models they stand for" in TrainStep.refused_options["dropout"]


@pytest.mark.parametrize(
    ("layout", "options", "sentence"),
    [
        ("tp3", {}, "tp3 does not divide the 8 attention heads of llama-tiny: 8 / 3 = 2.667"),
        ("tp2", {"shape": "llama-8b"}, None),
        (
            "dp2-tp2",
            {"global_batch_size": 3},
            "global_batch_size 3 is no multiple of micro_batch_size 1 x dp 2 = 2, so gradient_accumulation_steps would "
            "be 1.5; with 2 or 4 sequences it is whole",
        ),
        (
            "dp2-tp2",
            {"seq_len": 4096, "global_batch_size": 2**22},
            "global_batch_size 4194304 of seq_len 4096 are 17.2 billion tokens a step: it counts sequences, not tokens",
        ),
        ("tp4+sp", {"seq_len": 30}, "+sp cuts seq_len 30 over tp4, which does not divide it: 7.5"),
        ("tp4", {"seq_len": 30}, None),
        ("pp4", {}, None),
        (
            "pp4",
            {"schedule": "interleaved_1f1b", "global_batch_size": 16},
            "pp4 with 2 chunks per rank has 8 stages, and llama-tiny has 4 layers: every stage needs one",
        ),
        (
            "pp4",
            {"global_batch_size": 2},
            "1f1b needs as many microbatches as stages: at least 4, not 2; gpipe takes fewer (global_batch_size 2 = "
            "micro_batch_size 1 x gradient_accumulation_steps 2 x dp 1)",
        ),
        (
            "pp2",
            {"shape": "llama-1b", "schedule": "zbv"},
            "zbv puts the first and the last stage on one rank, where the tied embedding of llama-1b would be twice",
        ),
        (
            "pp2-dp2+zero3",
            {"schedule": "zbv"},
            "zbv computes the gradients of weights apart from those of inputs, and with +zero3 FSDP would reduce them "
            "before they are there; +zero1 does not",
        ),
        (
            "cp4",
            {"seq_len": 100},
            "context zigzag cuts seq_len 100 into 8 chunks, two for each of cp4: 12.5 tokens each",
        ),
        (
            "dp4+zero3",
            {"shard_group_size": 3},
            "shard_group_size 3 has to be a divisor of the 4 ranks of dp x cp, more than 1 and fewer than all",
        ),
        (
            "tp2+sp+zero1",
            {},
            "+zero1 shares optimizer states among ranks that hold the same weights, but dp and cp are 1",
        ),
        (
            "dp2-tp2+sp+ep2+zero1",
            {},
            "+ep2 spreads experts, but llama-tiny has none; shapes with experts are mixtral-8x22b, mixtral-8x7b, "
            "moe-flat-tiny, moe-shared-tiny, moe-tiny, olmoe-1b-7b",
        ),
        (
            "tp2",
            {"shape": "moe-tiny"},
            "with experts, tp2 needs +sp: each of 2 ranks would send the same tokens to them",
        ),
        ("tp2", {"compile": True}, None),
        ("pp2-dp2", {"compress": "bf16"}, "compress bf16 is a hook of DDP, without which pp2 reduces gradients"),
    ],
)
def test_what_cannot_be_is_said_with_its_numbers(layout: str, options: dict[str, Any], sentence: str | None) -> None:
    assert objection(layout, **options) == sentence


def test_ranks_that_dp_cannot_share_evenly_are_refused_by_size_and_not_a_mistake(tmp_path: Path) -> None:
    text = "suite: s\nbenchmarks:\n  - benchmark: train_step\n    layouts: [tp1, dp*-tp4]\n"
    (tmp_path / "s.yaml").write_text(text)
    plan = make_plan(load_suite(tmp_path / "s.yaml", benchmarks()), Cluster(1, 2, "cpu"))
    assert [case.layout for case in plan.cases] == ["tp1"]
    assert [refusal.reason for refusal in plan.refusals] == [
        "layout 'tp4' needs 4 ranks, but 1 node x 2 CPU ranks give 2."
    ]


def test_a_layout_that_cannot_be_read_is_a_mistake_of_the_suite() -> None:
    with pytest.raises(LayoutError, match="is written 'dp2-tp2'"):
        list(TrainStep.from_options({"layouts": ("tp2-dp2",)}).points(CPU4))


def predicted(layout: str, place: Place = CPU4, **options: Any) -> dict[str, float]:
    benchmark = TrainStep.from_options({"layouts": (layout,), **options})
    (point,) = benchmark.points(place)
    return {key: expected.value for key, expected in benchmark.predict(point, place).items()}


def test_expected_traffic_of_llama_8b_is_megatrons() -> None:
    # conventions.md 2.6: per layer and micro-batch, 4 all-reduces of b s h elements, ring factor 2 (t-1)/t; then the
    # embedding and the head, one each, three all-reduces of the loss in float32, and the norm of the gradients.
    options = {"shape": "llama-8b", "seq_len": 4096, "global_batch_size": 1, "dtype": "bfloat16"}
    stream, loss, norm = 130 * 4096 * 4096 * 2, 3 * 4096 * 4, 4
    assert predicted("tp8", H100, **options)["traffic_bytes[axis=tp]"] == (stream + loss + norm) * 2 * 7 / 8


def test_expected_gradients_over_dp_are_all_parameters_once() -> None:
    # 2 N (d-1)/d elements, once a step however many micro-batches (conventions.md 2.6)
    expected = predicted("dp4", global_batch_size=32)
    assert expected["traffic_bytes[axis=dp]"] == 1_049_728 * 4 * 2 * 3 / 4


def test_a_known_gpu_brings_its_peak_and_a_cpu_none() -> None:
    options = {"shape": "llama-8b", "dtype": "bfloat16"}
    assert predicted("tp8", H100, **options)["model_flops_per_s_per_rank[flops_convention=palm]"] == 989e12
    assert not any("flops_per_s" in key for key in predicted("tp4"))


def test_a_step_that_need_not_settle_says_so_in_its_point() -> None:
    (point,) = TrainStep.from_options({"layouts": ("tp1",)}).points(H100)
    (quick,) = TrainStep.from_options({"layouts": ("tp1",), "settle": False}).points(H100)
    assert "settle" not in point
    assert dict(quick) == {**point, "settle": False}
    assert (TrainStep.settles(point), TrainStep.settles(quick)) == (True, False)


def test_without_parity_nothing_is_expected_of_it() -> None:
    assert not any("parity" in key for key in predicted("tp4", parity=False))
    assert predicted("tp4")["parity_gradients"] == 1e-5


def case_of(layout: str, place: Place, **options: Any) -> Case:
    benchmark = TrainStep.from_options({"layouts": (layout,), **options})
    (point,) = benchmark.points(place)
    return Case(
        id=f"train_step/{layout}",
        benchmark="train_step",
        version=1,
        point=point,
        device=place.device,
        num_nodes=1,
        world_size=benchmark.world_size(point, place),
        iterations=3,
        warmup=1,
        time_limit_s=60.0,
        layout=benchmark.layout(point),
        expected=benchmark.predict(point, place),
    )


def observed(seconds: list[list[float]], **passes: Any) -> Observation:
    return Observation("c", "h", 0, 0, ("a",), seconds, evidence=[{"parity_loss": 1e-9}], passes=passes)


def derived(case: Case, observation: Observation, place: Place | None = None) -> dict[str, Metric]:
    at = place or (H100 if case.device == "cuda" else CPU4)
    return {metric.key: metric for metric in TrainStep.derive(case, observation, at)}


def test_mfu_is_the_golden_vector() -> None:
    # conventions.md, C.4: Llama 3 8B, 8192 tokens, 7000 tokens/s per GPU on 989 TFLOP/s: 40.99 %
    case = case_of("tp8", H100, shape="llama-8b", seq_len=8192, global_batch_size=1, dtype="bfloat16")
    figures = derived(case, observed([[8192 / (8 * 7000)] * 3] * 8))
    assert figures["tokens_per_s_per_rank"].value == pytest.approx(7000)
    assert figures["mfu[flops_convention=palm,peak=datasheet]"].value == pytest.approx(0.4099, abs=1e-4)
    assert figures["hfu[flops_convention=palm,peak=datasheet]"].value == pytest.approx(0.4099, abs=1e-4)


MFU = "mfu[flops_convention=palm,peak=datasheet]"
LLAMA = {"shape": "llama-8b", "seq_len": 8192, "global_batch_size": 1, "dtype": "bfloat16"}


def test_mfu_is_held_against_todays_tables_and_not_against_the_plan() -> None:
    case = case_of("tp8", H100, **LLAMA)
    with_sparsity = Expected(2 * 989e12, "FLOP/s", "dense peak, an upper bound: a sheet read wrongly")
    expected = {**case.expected, "model_flops_per_s_per_rank[flops_convention=palm]": with_sparsity}
    mfu = derived(replace(case, expected=expected), observed([[8192 / (8 * 7000)] * 3] * 8))[MFU]
    assert mfu.value == pytest.approx(0.4099, abs=1e-4)
    assert mfu.basis.startswith("dense peak, an upper bound: NVIDIA H100")
    assert mfu.basis.endswith("; it was planned with 1,978.0 TFLOP/s")


def test_a_device_that_is_in_no_table_keeps_the_peak_of_its_plan() -> None:
    case, seen = case_of("tp8", H100, **LLAMA), observed([[8192 / (8 * 7000)] * 3] * 8)
    mfu = derived(case, seen, Place(Cluster(1, 8, "cuda", "NVIDIA H1OO"), 1))[MFU]
    assert mfu.value == pytest.approx(0.4099, abs=1e-4)
    planned = case.expected["model_flops_per_s_per_rank[flops_convention=palm]"]
    assert mfu.basis == f"{planned.basis}; as planned: not on record today"


def test_a_device_that_has_come_into_the_tables_since_has_an_mfu_now() -> None:
    planned_before = case_of("tp8", Place(Cluster(1, 8, "cuda", "not on record"), 1), **LLAMA)
    seen = observed([[8192 / (8 * 7000)] * 3] * 8)
    unknown = derived(planned_before, seen, Place(Cluster(1, 8, "cuda", "not on record"), 1))[MFU]
    assert (unknown.value, unknown.basis) == (None, "no peak FLOP/s in bfloat16 is on record for this device")
    assert derived(planned_before, seen, H100)[MFU].value == pytest.approx(0.4099, abs=1e-4)


def busy(**figures: Any) -> dict[str, Any]:
    """What a GPU did while it was timed: 2 s of 700 W by its counter."""
    of_gpu = {"mean_power_w": 690.0, "energy_j": 1400.0, "energy_over_s": 2.0, "within": "timed"}
    return {"a": {f"GPU-{number}": {**of_gpu, **figures} for number in range(8)}}


def energy(telemetry: dict[str, Any]) -> Metric:
    seen = replace(observed([[8192 / (8 * 7000)] * 3] * 8), telemetry=telemetry)
    return derived(case_of("tp8", H100, **LLAMA), seen)["energy_per_token"]


def test_energy_is_that_of_the_counters_while_the_step_was_timed() -> None:
    figure = energy(busy())
    assert figure.value == pytest.approx(8 * 700.0 / 56_000)
    assert figure.basis == ("counters of energy of 8 GPUs while the step was timed, 5600 W; without hosts and network")


def test_energy_of_a_part_of_a_host_is_that_of_the_gpus_that_took_part() -> None:
    # eight are sampled on each of two hosts, and four of one of them work
    idle = {"mean_power_w": 70.0, "energy_j": 140.0, "energy_over_s": 2.0, "within": "timed"}
    (at_work,) = busy().values()
    gpus = {
        uuid: {**(gpu if number < 4 else idle), "index": number} for number, (uuid, gpu) in enumerate(at_work.items())
    }
    seen = observed([[8192 / (4 * 7000)] * 3] * 4)
    case = case_of("tp4", H100, **LLAMA)
    figure = derived(case, replace(seen, telemetry={"a": gpus, "b": gpus}))["energy_per_token"]
    assert figure.value == pytest.approx(4 * 700.0 / 28_000)
    del gpus["GPU-2"]
    figure = derived(case, replace(seen, telemetry={"a": gpus, "b": gpus}))["energy_per_token"]
    assert (figure.value, figure.basis) == (None, "3 of the 4 GPUs that took part were sampled")


def test_a_gpu_without_a_counter_has_its_mean_power() -> None:
    figure = energy(busy(energy_j=None, energy_over_s=None))
    assert figure.value == pytest.approx(8 * 690.0 / 56_000)
    assert figure.basis.startswith("mean power of 8 GPUs while the step was timed")


def test_energy_of_a_case_without_a_sample_while_it_was_timed_is_unknown() -> None:
    figure = energy(busy(within="case"))
    assert (figure.value, figure.basis) == (None, "no sample of the GPUs fell into what was timed")


def test_energy_of_an_earlier_record_says_that_it_is_of_the_whole_case() -> None:
    figure = energy({"a": {f"GPU-{number}": {"mean_power_w": 350.0, "energy_j": 9e9} for number in range(8)}})
    assert figure.value == pytest.approx(8 * 350.0 / 56_000)
    assert "over the whole case, with start, proof and passes" in figure.basis


def test_both_conventions_of_mfu_stand_beside_each_other() -> None:
    # Llama 3 8B, 4096 tokens, on one GPU: 10,471 tokens/s are 57.8 % with the embedding counted and 54.5 % without
    options = {"shape": "llama-8b", "seq_len": 4096, "global_batch_size": 8, "dtype": "bfloat16"}
    place = Place(Cluster(1, 1, "cuda", "NVIDIA H100 80GB HBM3"), 1)
    figures = derived(case_of("tp1", place, **options), observed([[8 * 4096 / 10_471] * 3]), place)
    assert figures["mfu[flops_convention=palm_6n,peak=datasheet]"].value == pytest.approx(0.578, abs=5e-4)
    assert figures[MFU].value == pytest.approx(0.545, abs=5e-4)


def executed_by(job_options: dict[str, Any], seconds: float) -> dict[str, Metric]:
    """A rank that executes what the formula has."""
    place = Place(Cluster(1, 1, "cuda", "NVIDIA H100 80GB HBM3"), 1)
    case = case_of("tp1", place, **job_options)
    counted = [
        Executed("aten::x", kind, during, 1, flops) for (kind, during), flops in formulas_of(case).executed[0].items()
    ]
    return derived(case, observed([[seconds] * 3], executed=[[vars(each) for each in counted]]), place)


@pytest.mark.parametrize(("recompute", "gflop"), [("none", 48.8), ("full", 60.06)])
def test_executed_flops_tell_what_recomputation_really_runs(recompute: str, gflop: float) -> None:
    # Llama 3 8B, 4096 tokens: what a token costs on tensor cores whose attention leaves out what the mask hides. All of
    # forward once more would be 63.8, but of a layer the last product is not, as nothing in backward needs it.
    options = {"shape": "llama-8b", "seq_len": 4096, "global_batch_size": 8, "dtype": "bfloat16"}
    figures = executed_by({**options, "recompute": recompute}, 8 * 4096 / 10_471)
    rate = figures["executed_flops_per_s_per_rank"]
    assert rate.value == pytest.approx(10_471 * gflop * 1e9, rel=2e-3)
    assert list(figures).index(rate.key) < list(figures).index("executed_flops[part=causal attention]")


def test_emptied_caches_of_the_allocator_are_a_metric_where_it_counts_them() -> None:
    case = case_of("tp2", CPU4)
    memory = [{"total": 7, "num_alloc_retries": 2}, {"total": 9, "num_alloc_retries": 0}]
    figures = derived(case, observed([[1.0]] * 2, memory=memory))
    retries = figures["num_alloc_retries"]
    assert (retries.value, retries.low, retries.high, retries.unit) == (2, 0, 2, "1")
    assert [key for key in figures if key.startswith("peak_memory")] == ["peak_memory[category=total]"]
    assert "num_alloc_retries" not in derived(case, observed([[1.0]] * 2, memory=[{"total": 7}, {"total": 9}]))


def test_full_recomputation_counts_in_hfu_only() -> None:
    options = {"shape": "llama-8b", "seq_len": 8192, "global_batch_size": 1, "dtype": "bfloat16"}
    figures = {
        recompute: derived(case_of("tp8", H100, **options, recompute=recompute), observed([[1.0] * 3] * 8))
        for recompute in ("none", "selective", "full")
    }
    mfu = {name: of["mfu[flops_convention=palm,peak=datasheet]"].value for name, of in figures.items()}
    hfu = {name: of["hfu[flops_convention=palm,peak=datasheet]"].value or 0.0 for name, of in figures.items()}
    assert len(set(mfu.values())) == 1
    assert hfu["selective"] == hfu["none"]
    assert 1.2 < hfu["full"] / hfu["none"] < 4 / 3  # all but the head and the last product of each layer


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    figures = derived(case_of("tp2", CPU4), observed([[1.0, 4.0, 1.0], [2.0, 1.0, 3.0]]))
    assert (figures["step_time"].value, figures["step_time"].low, figures["step_time"].high) == (3.0, 2.0, 4.0)
    assert figures["tokens_per_s"].value == 8 * 256 / 3.0


def test_stages_of_a_pipeline_with_unlike_numbers_of_layers_with_experts_are_each_held_against_themselves() -> None:
    """As zbv has it of five layers on two ranks, with ep over the ranks of a stage."""
    rows = [[10, 30, 20], [30, 10, 20], [12, 20], [28, 20]]  # by layer of each rank; those of stage 0 are 0 and 1
    loads = [{"seconds": {"experts": 0.1}, "imbalance": 1.0, "rows": of_rank, "expert_rows": []} for of_rank in rows]
    case = replace(case_of("pp2-dp2+ep2", CPU4, shape="moe-tiny"), expected={})
    metrics = TrainStep.derive(case, observed([[1.0]] * 4, experts=loads), CPU4)
    (of_ranks,) = [metric for metric in metrics if metric.key == "expert_imbalance[part=ranks]"]
    assert (of_ranks.value, of_ranks.low) == (1.5, 1.0)


def test_a_cpu_has_no_datasheet_and_says_so_once() -> None:
    figures = derived(case_of("tp1", CPU4), observed([[1.0]]))
    empty = [metric for metric in figures.values() if metric.value is None]
    assert [(metric.key, metric.basis) for metric in empty] == [
        ("mfu[flops_convention=palm,peak=datasheet]", "a CPU has no datasheet peak; see peak=measured")
    ]


TRACED = {"communication_s": 0.5, "compute_s": 0.5, "overlap_fraction": 0.5}


def test_what_was_seen_of_all_ranks_becomes_one_figure_each() -> None:
    traffic = [{"axis": "tp", "op": op, "count": 2, "size_bytes": 10, "traffic_bytes": 10.0} for op in ("a", "b")]
    figures = derived(
        replace(case_of("tp2", CPU4), expected={}),  # invented figures are held against no formula
        observed(
            [[1.0], [1.0]],
            memory=[{"total": 5, "parameters": 3}, {"total": 7, "parameters": 3}],
            traffic=[traffic, traffic],
            exposed=[
                {**TRACED, "exposed_s": 0.25, "step_s": 1.0},
                {**TRACED, "exposed_s": 0.5, "step_s": 1.5},
            ],
        ),
    )
    assert figures["peak_memory[category=total]"].value == 7
    assert figures["traffic_bytes[axis=tp]"].value == 20.0
    assert figures["collectives[axis=tp]"].value == 4
    assert (figures["exposed_communication"].low, figures["exposed_communication"].high) == (0.25, 0.5)
    assert figures["exposed_communication"].basis == "in one traced step of 1.500 s; tracing makes it longer"
    assert figures["parity_loss"].value == 1e-9
    assert {metric.name for metric in figures.values()} <= {kind.name for kind in TrainStep.metrics}


def test_a_trace_without_a_kernel_does_not_say_that_nothing_was_exposed() -> None:
    # what torch's profiler gives where another tool has subscribed to CUPTI: no error, and not one event of the GPU
    nothing = {"communication_s": 0.0, "compute_s": 0.0, "overlap_fraction": None, "exposed_s": 0.0, "step_s": 1.0}
    seen = {**TRACED, "exposed_s": 0.25, "step_s": 1.0}
    records = [{**of_rank, "transfers": []} for of_rank in (seen, nothing)]
    figures = derived(replace(case_of("tp2", H100), expected={}), observed([[1.0], [1.0]], exposed=records))
    assert figures["exposed_communication"].value is None
    assert figures["exposed_communication"].basis == (
        "on rank 1 the profiler recorded nothing that computes: another tool may hold it, or its library (CUPTI) is "
        "missing"
    )
    assert not [name for name in figures if name.startswith("step_part")]


def test_a_collective_nobody_knows_leaves_the_cell_empty() -> None:
    odd = [{"axis": "tp", "op": "c10d::odd", "count": 1, "size_bytes": 1, "traffic_bytes": None}]
    figures = derived(case_of("tp2", CPU4), observed([[1.0], [1.0]], traffic=[odd, odd]))
    assert figures["traffic_bytes[axis=tp]"].value is None
    assert figures["traffic_bytes[axis=tp]"].basis == "no bus factor is known for c10d::odd"


def row(layout: str, world_size: int, metric: str, value: float | None, **more: Any) -> Row:
    point = {
        "layout": layout,
        "shape": "llama-tiny",
        "seq_len": 256,
        "dtype": "float32",
        "global_batch_size": more.pop("global_batch_size", 8),
        "micro_batch_size": 1,
        "seed": 0,
        "max_grad_norm": 1.0,
        "recompute": more.pop("recompute", "none"),
    }
    return Row(
        run="r",
        case=f"train_step/{layout}",
        benchmark="train_step",
        version=1,
        status="ok",
        point=point,
        num_nodes=1,
        world_size=world_size,
        hosts="a",
        device="cpu",
        metric=metric,
        unit="",
        value=value,
        **more,
    )


def efficiencies(*rows: Row) -> dict[str, tuple[float | None, str]]:
    rows_of_metric = [row for row in TrainStep.across(rows) if row.metric == "scaling_efficiency"]
    return {row.case.removeprefix("train_step/"): (row.value, row.basis) for row in rows_of_metric}


def test_scaling_is_held_against_the_smallest_run_of_the_same_work() -> None:
    speed = "tokens_per_s_per_rank"
    ratios = efficiencies(row("tp1", 1, speed, 100.0), row("tp2", 2, speed, 80.0), row("tp4", 4, speed, 50.0))
    against = "strong scaling: tokens/s per rank over those of tp1 on 1 rank; 1 is perfect scaling"
    assert ratios == {"tp1": (1.0, against), "tp2": (0.8, against), "tp4": (0.5, against)}


def test_work_that_grows_with_the_ranks_is_weak_scaling() -> None:
    speed = "tokens_per_s_per_rank"
    ratios = efficiencies(
        row("tp1", 1, speed, 100.0), row("dp4", 4, speed, 90.0, global_batch_size=32), row("tp2", 2, speed, 80.0)
    )
    assert ratios["dp4"] == (0.9, "weak scaling: tokens/s per rank over those of tp1 on 1 rank; 1 is perfect scaling")


def test_of_several_smallest_runs_the_fastest_is_the_measure() -> None:
    speed = "tokens_per_s_per_rank"
    ratios = efficiencies(row("dp2", 2, speed, 100.0), row("tp2", 2, speed, 80.0), row("tp4", 4, speed, 50.0))
    assert ratios["tp4"] == (
        0.5,
        "strong scaling: tokens/s per rank over those of dp2 on 2 ranks; 1 is perfect scaling",
    )
    assert ratios["tp2"][0] == 0.8


def with_options(of: Row, options: dict[str, Any]) -> Row:
    """None leaves an option out."""
    return of._replace(point={**of.point, **{name: value for name, value in options.items() if value is not None}})


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("trainer", ("ours", "plain_ddp")),
        ("routing", ("real", "balanced")),
        ("recompute", ("none", "full")),
        ("precision", (None, "pure_bfloat16")),  # the default of what came later is not in a point
        ("compile", (False, True)),
        ("NCCL_ALGO", ("Ring", "Tree")),
    ],
)
def test_a_run_is_held_against_one_with_its_own_options(option: str, values: tuple[Any, Any]) -> None:
    speed, (first, second) = "tokens_per_s_per_rank", values
    ratios = efficiencies(
        with_options(row("tp1", 1, speed, 100.0), {option: first}),
        with_options(row("tp1 too", 1, speed, 50.0), {option: second}),
        with_options(row("tp2", 2, speed, 80.0), {option: first}),
        with_options(row("dp2", 2, speed, 45.0), {option: second}),
    )
    assert {case: value for case, (value, _) in ratios.items()} == {"tp1": 1.0, "tp1 too": 1.0, "tp2": 0.8, "dp2": 0.9}


@pytest.mark.parametrize("sharing", [{"schedule": "zbv"}, {"context": "ring"}, {"expert_overlap": True}])
def test_how_work_is_shared_may_differ(sharing: dict[str, Any]) -> None:
    speed = "tokens_per_s_per_rank"
    other = {name: None if isinstance(value, str) else False for name, value in sharing.items()}
    ratios = efficiencies(
        with_options(row("pp2", 2, speed, 100.0), other), with_options(row("pp4", 4, speed, 50.0), sharing)
    )
    assert ratios["pp4"][0] == 0.5


def test_an_efficiency_has_the_band_of_its_repeats() -> None:
    speed = "tokens_per_s_per_rank"
    rows = [row("tp1", 1, speed, 100.0, low=90.0, high=110.0), row("tp2", 2, speed, 80.0, low=75.0, high=85.0)]
    rows_of_case = {
        across_row.case: across_row
        for across_row in TrainStep.across(rows)
        if across_row.metric == "scaling_efficiency"
    }
    assert (rows_of_case["train_step/tp2"].low, rows_of_case["train_step/tp2"].high) == (0.75, 0.85)
    assert (rows_of_case["train_step/tp1"].low, rows_of_case["train_step/tp1"].high) == (0.9, 1.1)


def steps(layout: str, world_size: int, parts: dict[str, float], **more: Any) -> list[Row]:
    """A step that takes as long as its parts, ``part`` or ``part/axis``."""
    tokens = more.get("global_batch_size", 8) * 256
    rows = [row(layout, world_size, "tokens_per_s_per_rank", tokens / world_size / sum(parts.values()), **more)]
    for name, seconds in parts.items():
        part, _, axis = name.partition("/")
        rows.append(row(layout, world_size, "step_part", seconds, detail=detail_of((part, axis)), **more))
    return rows


def losses(*rows: Row) -> dict[str, dict[str, float | None]]:
    losses_of: dict[str, dict[str, float | None]] = {}
    for loss_row in TrainStep.across(rows):
        if loss_row.metric == "scaling_loss_part":
            losses_of.setdefault(loss_row.case.removeprefix("train_step/"), {})["/".join(loss_row.detail.values())] = (
                loss_row.value
            )
    return losses_of


def test_what_strong_scaling_loses_is_held_against_the_same_part_of_the_work_of_a_rank() -> None:
    base = steps("tp1", 1, {"compute": 7.0, "rest": 1.0})
    four = steps("tp4", 4, {"compute": 2.5, "exposed_communication/tp": 1.0, "imbalance": 0.5})
    assert losses(*base, *four) == {
        "tp4": {"compute": 0.75, "exposed_communication/tp": 1.0, "imbalance": 0.5, "rest": -0.25}
    }
    (rest,) = (loss_row for loss_row in TrainStep.across([*base, *four]) if loss_row.detail == {"part": "rest"})
    assert rest.basis == (
        "strong scaling: of a step, less 0.25 x the same part of tp1 on 1 rank; the parts sum to the loss"
    )


def test_what_weak_scaling_loses_is_held_against_the_whole_part() -> None:
    base = steps("tp1", 1, {"compute": 7.0})
    four = steps("dp4", 4, {"compute": 7.0, "exposed_communication/dp": 2.0}, global_batch_size=32)
    assert losses(*base, *four) == {"dp4": {"compute": 0.0, "exposed_communication/dp": 2.0}}


def test_without_the_parts_of_both_no_loss_is_taken_apart() -> None:
    base, four = steps("tp1", 1, {"compute": 8.0}), steps("tp4", 4, {"compute": 3.0})
    assert losses(base[0], *four) == losses(*base, four[0]) == {}


def test_a_long_table_is_derived_in_a_blink() -> None:
    # 20,000 rows compared in pairs would take minutes; this is far below the timeout whatever the machine
    rows = [row(f"dp{size}", size, "tokens_per_s_per_rank", 1.0, global_batch_size=size) for size in range(1, 20_001)]
    assert len(efficiencies(*rows)) == 20_000


def test_mfu_against_the_matmul_of_this_run() -> None:
    flops = row("tp2", 2, "model_flops_per_s_per_rank", 4e9, detail={"flops_convention": "palm"}, recompute="full")
    matmuls = [
        Row(
            run="r",
            case=f"matmul/{size}",
            benchmark="matmul",
            version=1,
            status="ok",
            point={"size": size, "dtype": "float32", "num_ranks": ranks},
            num_nodes=1,
            world_size=ranks,
            hosts="a",
            device="cpu",
            metric="flops_per_s_per_rank",
            unit="FLOP/s",
            value=value,
        )
        for size, ranks, value in ((512, 2, 5e9), (1024, 2, 8e9), (1024, 1, 40e9))
    ]
    mfu, hfu = TrainStep.across([flops, *matmuls])
    assert (mfu.metric, mfu.value, mfu.detail["peak"]) == ("mfu", 0.5, "measured")
    assert mfu.basis == "peak is 8.0 GFLOP/s per rank, measured by matmul/1024"
    assert hfu.metric == "hfu"
    assert 0.6 < (hfu.value or 0) < 0.67
    burst = matmuls[1]._replace(metric="burst_flops_per_s_per_rank", value=16e9)
    assert [made.value for made in TrainStep.across([flops, *matmuls, burst])] == [mfu.value, hfu.value]
    (empty,) = TrainStep.across([flops])
    assert (empty.value, empty.basis) == (None, "no matmul in float32 on as many ranks was measured in this run")


def test_a_step_with_float8_is_held_against_matmuls_of_float8_and_those_of_bfloat16_beside() -> None:
    """On an H200 one had an MFU of 118 %, over a matmul in bfloat16."""
    about = ("r", "matmul/8192", "matmul", 1, "ok", {"dtype": "bfloat16"}, 1, 1, "a", "cuda")
    sixteen = Row(*about, "flops_per_s_per_rank", "FLOP/s", 680e12)
    eight = sixteen._replace(case="matmul/float8", point={"dtype": "float8"}, value=1280e12)
    point = {"shape": "llama-8b", "seq_len": 4096, "dtype": "bfloat16", "recompute": "none", "float8": "tensorwise"}
    about = ("r", "train_step/1n1/tp1", "train_step", 1, "ok", point, 1, 1, "a", "cuda")
    flops = Row(*about, "model_flops_per_s_per_rank", "FLOP/s", 800e12, detail={"flops_convention": "palm"})

    def shares(*rows: Row) -> dict[str, float | None]:
        made = TrainStep.across([flops, *rows])
        return {row.detail["peak"]: row.value for row in made if row.metric == "mfu"}

    assert shares(sixteen, eight) == {"measured": 0.625, "measured bfloat16": pytest.approx(800 / 680)}
    assert shares(sixteen) == {"measured": None, "measured bfloat16": pytest.approx(800 / 680)}


def test_the_peak_of_a_gpu_says_whether_it_lasts() -> None:
    about = ("r", "matmul/8192", "matmul", 1, "ok", {"dtype": "float32"}, 1, 2, "a", "cuda")
    product = Row(*about, "flops_per_s_per_rank", "FLOP/s", 7e14)
    burst = product._replace(metric="burst_flops_per_s_per_rank", value=8e14)
    flops = row("tp2", 2, "model_flops_per_s_per_rank", 3.5e14, detail={"flops_convention": "palm"}, recompute="none")
    flops = flops._replace(device="cuda")
    now, _ = TrainStep.across([flops, product, burst])
    before, _ = TrainStep.across([flops, product])
    assert now.value == before.value == 0.5
    assert now.basis.endswith("measured by matmul/8192, sustained")
    assert before.basis.endswith("measured by matmul/8192, a burst of few products, which is above what lasts")
    unsettled = product._replace(case="matmul/4096", value=9e14)
    for rows in ([product, burst, unsettled], [unsettled, product, burst]):
        assert next(iter(TrainStep.across([flops, *rows]))) == now


def real_case(layout: str) -> dict[str, Any]:
    from clusterbench.layout import ParallelLayout
    from tests.training.jobs import make_rig

    place = Place(Cluster(1, 4, "cpu"), 1)
    benchmark = TrainStep.from_options({"layouts": (layout,), "seq_len": 32, "global_batch_size": 4})
    (point,) = benchmark.points(place)
    step = TrainStep.prepare(make_rig(ParallelLayout.parse(layout)), point)
    evidence = dict(step.check())
    step.run()
    return {"evidence": evidence, **{name: observe() for name, observe in step.passes.items()}}


@pytest.mark.gloo
def test_a_real_case_shows_the_expected_traffic_and_memory() -> None:
    import json

    ranks = run_ranks(4, real_case, "dp2-tp2+sp")
    json.dumps(ranks)  # what a worker sends
    case = case_of("dp2-tp2+sp", CPU4, seq_len=32, global_batch_size=4)
    passes = {name: [rank[name] for rank in ranks] for name in ("memory", "traffic", "exposed")}
    figures = derived(case, Observation("c", "h", 0, 0, ("a",), [[1.0]] * 4, [r["evidence"] for r in ranks], passes))
    for key in ("traffic_bytes[axis=tp]", "traffic_bytes[axis=dp]", "collectives[axis=tp]", "collectives[axis=dp]"):
        assert figures[key].value == case.expected[key].value, key
    for category in ("parameters", "gradients", "optimizer_state"):
        key = f"peak_memory[category={category}]"
        assert figures[key].value == case.expected[key].value, key
    assert (figures["parity_gradients"].value or 1) <= case.expected["parity_gradients"].value
    assert (figures["exposed_communication"].value or 0) > 0
    parts = {key: metric.value or 0.0 for key, metric in figures.items() if metric.name == "step_part"}
    assert sum(parts.values()) == pytest.approx(1.0)
    assert {key for key in parts if "axis" in key} == {
        f"step_part[axis={axis},part=exposed_communication]" for axis in ("dp", "tp")
    }


def test_where_the_peak_is_on_record_no_step_can_be_faster_than_its_arithmetic() -> None:
    benchmark = TrainStep.from_options(
        {"layouts": ("tp8",), "shape": "llama-8b", "seq_len": 8192, "global_batch_size": 1, "dtype": "bfloat16"}
    )
    (point,) = benchmark.points(H100)
    expected = benchmark.predict(point, H100)
    # 51.470 GFLOP per token, attention counted causal (the golden vector of tests/formulas), on 8 ranks of 989 TFLOP/s
    assert expected["step_time"].value == pytest.approx(51.470e9 * 8192 / (8 * 989e12), rel=1e-4)
    assert expected["tokens_per_s_per_rank"].value == pytest.approx(989e12 / 51.470e9, rel=1e-4)
    assert expected["step_time"].basis.startswith("at least; model FLOPs")


def test_nothing_is_said_of_the_time_on_a_cpu() -> None:
    benchmark = TrainStep.from_options({"layouts": ("tp2",)})
    (point,) = benchmark.points(CPU4)
    assert "step_time" not in benchmark.predict(point, CPU4)


def test_a_step_whose_tokens_are_there_is_the_case_it_was() -> None:
    (plain,) = TrainStep.from_options({"layouts": ("dp4",)}).points(CPU4)
    (resident,) = TrainStep.from_options({"layouts": ("dp4",), "tokens": "resident", "path": "/data"}).points(CPU4)
    (read,) = TrainStep.from_options({"layouts": ("dp4",), "tokens": "read", "path": "/data"}).points(CPU4)
    assert dict(resident) == dict(plain)
    assert dict(read) == {**plain, "tokens": "read", "path": "/data"}
    assert TrainStep.proof_key(read, "cpu") == TrainStep.proof_key(plain, "cpu")  # a twin reads nothing


def test_what_is_said_of_a_file_has_no_effect_where_none_is_read() -> None:
    said = TrainStep.from_options({"layouts": ("dp4",), "path": "/data"})
    assert list(said.ineffective(["path"], CPU4)) == [("path", "with tokens: resident nothing is read")]
    read = TrainStep.from_options({"layouts": ("dp4",), "path": "/data", "tokens": "read"})
    assert list(read.ineffective(["path"], CPU4)) == []


def test_a_rank_alone_reads_no_tokens() -> None:
    assert objection("dp2-tp2", tokens="read") is None
    assert objection("dp2-tp2", tokens="read", communication="fake") == (
        "communication fake is of a step whose tokens are there, and tokens: read has each step wait for its own"
    )


def test_a_dry_run_refuses_tokens_that_are_read(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "suite: fed\nquestion: Is it?\nbenchmarks:\n"
        "  - {benchmark: train_step, layouts: [dp4], tokens: [resident, read]}\n"
    )
    plan = dry_plan(make_plan(load_suite(suite), CPU4.cluster))
    assert [case.id for case in plan.cases] == ["dry_step/1n4/dp4-tokens=resident"]
    assert [refusal.reason for refusal in plan.refusals] == [
        "a dry run has no disk from which tokens are read: with tokens: resident the step holds as much."
    ]


def test_waits_are_those_of_the_slowest_rank_in_each_call() -> None:
    (point,) = TrainStep.from_options({"layouts": ("dp2",), "tokens": "read"}).points(CPU4)
    ranks = [
        {"token_wait": [0.0, 0.5, 0.25], "token_read": [0.1] * 3},
        {"token_wait": [1.0, 0.0, 0.0], "token_read": [0.2] * 3},
    ]
    passes = {"samples": ranks}
    found = derived_at(
        "train_step", point, [[2.0] * 3] * 2, [{"resident_fraction": share} for share in (0.0, 0.125)], passes
    )
    assert found["token_wait"].value == 0.5
    assert found["token_read"].value == 0.2
    assert found["token_wait"].basis == (
        "until the tokens of a step are where it computes, by the clock of the step; 12.5 % of the file was in the "
        "host's memory before"
    )
    unknown = derived_at("train_step", point, [[2.0] * 3] * 2, passes=passes)["token_read"]
    assert unknown.basis.endswith("how much of the file was in the host's memory before is not known")
