"""DeepSpeed goes through the door every trainer takes, and what it sends and keeps is known to the byte."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import clusterbench
from clusterbench.cli import main
from clusterbench.errors import NotHere, ToolError, WrongResult
from clusterbench.expected.tolerances import comparisons_of
from clusterbench.expected.twin import twin_of
from clusterbench.parallel import active_in, from_options
from clusterbench.trainers import deepspeed, trainers
from clusterbench.trainers.deepspeed.expected import expected_of_deepspeed
from clusterbench.trainers.deepspeed.settings import settings_of
from tests.ranks import Calls, run_ranks
from tests.training.jobs import make_job, make_rig, parity_of

NAME = "deepspeed"
FLOAT32, BFLOAT16 = {"dtype": "float32"}, {"dtype": "bfloat16"}
NARROW = {**BFLOAT16, "gradient_dtype": "bfloat16"}


def objection(layout: str, shape: str = "llama-tiny", **options: Any) -> str | None:
    job = make_job(layout, shape=shape, **FLOAT32)
    return trainers()[NAME]().objection(job, active_in(job.layout, from_options(options)))


@pytest.mark.parametrize("layout", ["dp2+zero1", "dp4+zero2", "dp2+zero3"])
def test_it_takes_every_stage_of_zero_with_and_without_recomputation(layout: str) -> None:
    assert objection(layout) is None
    assert objection(layout, recompute="full") is None


@pytest.mark.parametrize(
    ("layout", "options", "reason"),
    [
        ("dp2", {}, "trainer deepspeed shares a step over dp with zero1, zero2 or zero3; this is dp2"),
        ("dp2-tp2+zero1", {}, "no option but recompute; this dp2-tp2+zero1 needs TensorParallel"),
        ("dp2+zero3", {"offload": True}, "no option but recompute; this dp2+zero3 needs FullySharded"),
        ("dp2+zero1", {"compile": True}, "no option but recompute; this dp2+zero1 needs Compile"),
    ],
)
def test_it_refuses_what_it_cannot_share(layout: str, options: dict[str, Any], reason: str) -> None:
    assert (objection(layout, **options) or "").endswith(reason)


def test_it_refuses_experts_float64_and_narrow_weights() -> None:
    job = make_job("dp2+zero1", dtype="float64")
    reason = trainers()[NAME]().objection(job, active_in(job.layout, from_options({})))
    assert reason == "trainer deepspeed runs in float32 and bfloat16; this dp2+zero1 is in float64"
    assert objection("dp2+zero1", "moe-tiny") == "trainer deepspeed runs dense models; moe-tiny has 8 experts"
    job = make_job("dp2+zero1", dtype="bfloat16", precision="pure_bfloat16")
    reason = trainers()[NAME]().objection(job, active_in(job.layout, from_options({})))
    assert reason == "trainer deepspeed keeps float32 weights; this step has precision pure_bfloat16"


def test_without_the_package_a_case_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed, "find_spec", lambda name: None)
    with pytest.raises(NotHere, match=r"not installed here: pip install 'clusterbench\[deepspeed\]'"):
        trainers()[NAME]().build(make_job("dp2+zero1"), from_options({}), None, None)  # type: ignore[arg-type]


def test_a_package_that_cannot_be_imported_is_named_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from clusterbench.trainers.deepspeed.step import _engine

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    for name in ("LOCAL_RANK", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")
    with pytest.raises(ToolError, match=r"trainer deepspeed found .* cannot import it: import of deepspeed halted.*"):
        _engine(None, None, {}, None, torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["dp2+zero1", "dp2+zero3"])
def test_a_twin_has_several_buckets_and_gathers_all_but_norms(layout: str) -> None:
    job, every = make_job(layout, **FLOAT32), from_options({})
    twin = twin_of(job, every)
    (comparison,) = comparisons_of(job, every, runs_in_float64=False)
    of_twin, of_job = (settings_of(*of)["zero_optimization"] for of in ((twin, comparison.parallelisms), (job, every)))
    assert 2 * of_twin["reduce_bucket_size"] < twin.shape.num_parameters
    assert of_twin["stage3_param_persistence_threshold"] == twin.shape.hidden_size
    assert of_job["reduce_bucket_size"] == job.shape.num_parameters


@pytest.mark.gloo
def test_a_job_that_asks_for_nothing_else_has_deepspeeds_own_sizes() -> None:
    """With weights that never stay gathered stage 3 sends less often and more: no formula would have said so."""
    told = settings_of(make_job("dp2+zero3", shape="llama-1b", **FLOAT32), from_options({}))["zero_optimization"]
    own = run_ranks(1, _defaults)[0]
    assert {name: told[name] for name in own} == own


def _defaults() -> dict[str, int]:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    made = DeepSpeedZeroConfig(stage=3)
    return {
        "reduce_bucket_size": made.reduce_bucket_size,
        "allgather_bucket_size": made.allgather_bucket_size,
        "stage3_prefetch_bucket_size": made.prefetch_bucket_size,
        "stage3_param_persistence_threshold": made.param_persistence_threshold,
    }


# The proof


HONEST = [
    ("dp2+zero1", {}, FLOAT32),
    ("dp2+zero2", {}, FLOAT32),
    ("dp2+zero3", {"recompute": "full"}, FLOAT32),
    ("dp2+zero1", {}, BFLOAT16),
    ("dp2+zero2", {"recompute": "selective"}, BFLOAT16),
    ("dp2+zero3", {}, BFLOAT16),
    ("dp2+zero1", {}, NARROW),
    ("dp2+zero2", {}, NARROW),
    ("dp2+zero3", {}, NARROW),
]
PARITY = Calls(parity_of, [(2, *case, NAME) for case in HONEST])


@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "options", "changes"), HONEST)
def test_it_computes_what_one_rank_computes(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> None:
    evidence = PARITY(2, layout, options, changes, NAME)[0]
    assert isinstance(evidence, dict), evidence


def _same_tokens(step: Any) -> None:
    from clusterbench.training.data import micro_batches

    step.micro_batches = micro_batches(step.job, 0, step.micro_batches[0][0].new_tensor(range(step.job.seq_len)))


def _twice_the_rate(step: Any) -> None:
    for group in step.optimizers[0].param_groups:
        group["lr"] *= 2


def _no_clipping(step: Any) -> None:
    step.engine.optimizer.clip_grad = 0.0


def _masters_as_rounded(step: Any) -> None:
    """As DeepSpeed begins."""
    for part in step.parts().values():
        part.value.copy_(part.value.bfloat16())


def _norm_over_ranks(step: Any) -> None:
    """Without a group for tensor parallelism DeepSpeed's bfloat16 optimizer sums whole norms of all ranks."""
    step.engine.optimizer.mpu.get_model_parallel_group = lambda: None


def _keys_of_rank_1_are_not_gathered(step: Any) -> None:
    """It goes on with those from before the first update: of weights that another rank has stepped, and of its own."""
    import torch.distributed as dist

    keys = [weight for name, weight in step.modules[0].named_parameters() if "key" in name]
    old, honest = [weight.detach().clone() for weight in keys], step.engine.step

    def planted() -> None:
        honest()
        if dist.get_rank() == 1:
            for weight, before in zip(keys, old, strict=True):
                weight.data.copy_(before)

    step.engine.step = planted


def wrong_parity(layout: str, changes: dict[str, Any], plant: Callable[[Any], None]) -> Any:
    from clusterbench.trainers.deepspeed.step import DeepSpeedStep

    honest = DeepSpeedStep.__init__

    def planted(self: Any, *arguments: Any) -> None:
        honest(self, *arguments)
        plant(self)

    DeepSpeedStep.__init__ = planted  # type: ignore[method-assign]
    try:
        return parity_of(layout, {}, changes, NAME)
    finally:
        DeepSpeedStep.__init__ = honest  # type: ignore[method-assign]


COMPUTED = "does not compute what one rank computes: "
COPIES = "of weights in bfloat16 that are not those of the weights that the step began with"
PLANTED = [
    ("dp2+zero1", FLOAT32, _same_tokens, COMPUTED + "the loss of the first step"),
    ("dp2+zero3", BFLOAT16, _same_tokens, COMPUTED + "the loss of the first step"),
    ("dp2+zero2", FLOAT32, _twice_the_rate, COMPUTED + "what two steps changed of"),
    ("dp2+zero3", BFLOAT16, _twice_the_rate, COMPUTED + "what two steps changed of"),
    ("dp2+zero2", BFLOAT16, _masters_as_rounded, COMPUTED + "the loss of the second step"),
    ("dp2+zero1", BFLOAT16, _norm_over_ranks, COMPUTED + "the scale of the gradient of all weights"),
    ("dp2+zero1", BFLOAT16, _keys_of_rank_1_are_not_gathered, COPIES),
    ("dp2+zero2", BFLOAT16, _keys_of_rank_1_are_not_gathered, COPIES),
]
WRONG_PARITY = Calls(wrong_parity, [(2, *case[:3]) for case in PLANTED])


@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "changes", "plant", "what"), PLANTED)
def test_what_it_would_do_wrong_is_wrong(
    layout: str, changes: dict[str, Any], plant: Callable[[Any], None], what: str
) -> None:
    for verdict in WRONG_PARITY(2, layout, changes, plant):
        assert isinstance(verdict, str), verdict
        assert what in verdict


def parity_as_told(layout: str, changes: dict[str, Any], told: dict[str, Any]) -> Any:
    from clusterbench.trainers.deepspeed import step

    honest = step.settings_of
    step.settings_of = lambda *of: {**honest(*of), **told}
    try:
        return parity_of(layout, {}, changes, NAME)
    finally:
        step.settings_of = honest


TOLD = {"data_types": {"grad_accum_dtype": "bf16"}}
AS_TOLD = Calls(parity_as_told, [(2, layout, BFLOAT16, TOLD) for layout in ("dp2+zero2", "dp2+zero3")])


@pytest.mark.gloo
@pytest.mark.parametrize("layout", ["dp2+zero2", "dp2+zero3"])
def test_gradients_that_it_adds_up_in_bfloat16_unasked_are_wrong(layout: str) -> None:
    for verdict in AS_TOLD(2, layout, BFLOAT16, TOLD):
        assert "rounds gradients to bfloat16, which nothing asks for" in str(verdict)


def _embedding_of_rank_1_is_old(step: Any) -> None:
    """Rank 0 has stepped its first half and all else is right: losses and norms in bfloat16 do not show it."""
    _is_old_on_rank_1(step, "embedding")


def _norms_of_rank_1_are_old(step: Any) -> None:
    """Of what stays gathered in stage 3."""
    _is_old_on_rank_1(step, "norm")


def _is_old_on_rank_1(step: Any, of: str) -> None:
    import torch.distributed as dist

    weights = [weight for name, weight in step.modules[0].named_parameters() if of in name]
    old = [weight.detach().clone() for weight in weights]
    for _ in range(4):  # of norms, which are near 1, a single update is less than a rounding
        step()
    if dist.get_rank() == 1:
        for weight, before in zip(weights, old, strict=True):
            half = before.numel() // 2
            weight.data.view(-1)[:half] = before.view(-1)[:half]


def after_timing(layout: str, changes: dict[str, Any], plant: Callable[[Any], None] | None) -> Any:
    from clusterbench.proof.last_update import check_last_update

    job, every = make_job(layout, **changes), from_options({})
    rig = make_rig(job.layout)
    step: Any = trainers()[NAME]().build(job, every, rig.grid, rig.device)
    for _ in range(3):
        step()
    if plant is not None:
        plant(step)
    try:
        return check_last_update(step, rig, active_in(job.layout, every))
    except WrongResult as error:
        return str(error)


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize("changes", [FLOAT32, BFLOAT16, NARROW], ids=["float32", "bfloat16", "narrow"])
@pytest.mark.parametrize("layout", ["dp2+zero1", "dp2+zero2", "dp2+zero3"])
def test_behind_the_clock_its_updates_are_adamws_and_of_clipped_gradients(layout: str, changes: dict[str, Any]) -> None:
    found = run_ranks(2, after_timing, layout, changes, None)[0]
    assert isinstance(found, dict), found
    assert found.keys() == {"clipping", "copies", "last_update"}
    assert found["last_update"] < 2


BEHIND = [
    ("dp2+zero1", BFLOAT16, _twice_the_rate, "roundings from AdamW's formula"),
    ("dp2+zero3", FLOAT32, _twice_the_rate, "roundings from AdamW's formula"),
    ("dp2+zero2", FLOAT32, _no_clipping, "that the optimizer took is not that of clipped ones"),
    ("dp2+zero1", BFLOAT16, _embedding_of_rank_1_is_old, "copies of embedding.weight on rank"),
    ("dp2+zero2", FLOAT32, _embedding_of_rank_1_is_old, "copies of embedding.weight on rank"),
    ("dp2+zero3", BFLOAT16, _norms_of_rank_1_are_old, "copies of "),
]
WRONG_BEHIND = Calls(after_timing, [(2, *case[:3]) for case in BEHIND])


@pytest.mark.gloo
@pytest.mark.parametrize(("layout", "changes", "plant", "what"), BEHIND)
def test_behind_the_clock_what_it_does_wrong_is_wrong(
    layout: str, changes: dict[str, Any], plant: Callable[[Any], None], what: str
) -> None:
    for verdict in WRONG_BEHIND(2, layout, changes, plant):
        assert what in str(verdict)


def first_sketch(trainer: str, layout: str) -> Any:
    from clusterbench.proof.sketch import Sketch

    job = make_job(layout, **FLOAT32)
    rig = make_rig(job.layout)
    step = trainers()[trainer]().build(job, from_options({}), rig.grid, rig.device)
    step()
    return Sketch(step).numbers(rig)


@pytest.mark.gloo
def test_the_sketch_of_its_first_gradients_is_that_of_ours_in_whatever_stretches_they_are() -> None:
    ours = run_ranks(2, first_sketch, "ours", "dp2+zero3")[0]
    for layout in ("dp2+zero1", "dp2+zero3"):
        its = run_ranks(2, first_sketch, NAME, layout)[0]
        assert its.keys() == ours.keys()
        assert its == pytest.approx(ours, rel=1e-3, abs=1e-4)


# What is expected


def kept_and_sent(layout: str, changes: dict[str, Any]) -> Any:
    from clusterbench.training.passes import passes_of

    job = make_job(layout, **changes)
    rig = make_rig(job.layout)
    step = trainers()[NAME]().build(job, from_options({}), rig.grid, rig.device)
    step()
    passes = passes_of(step, rig)
    memory, traffic = passes["memory"](), passes["traffic"]()
    return {
        "traffic_bytes[axis=dp]": sum(moved["traffic_bytes"] for moved in traffic),
        "collectives[axis=dp]": sum(moved["count"] for moved in traffic),
        **{f"memory_at_rest[category={name}]": memory[f"{name} at rest"] for name in ("parameters", "optimizer_state")},
    }


@pytest.mark.matrix
@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("dp2+zero1", FLOAT32),
        ("dp2+zero1", BFLOAT16),
        ("dp2+zero1", NARROW),
        ("dp2+zero2", {**BFLOAT16, "max_grad_norm": None}),
        ("dp3+zero1", {**FLOAT32, "global_batch_size": 12}),
        ("dp3+zero1", {**BFLOAT16, "global_batch_size": 12, "shape": "llama-flat-tiny"}),
        ("dp3+zero2", {**NARROW, "global_batch_size": 18}),
        ("dp3+zero3", {**FLOAT32, "global_batch_size": 12}),
    ],
)
def test_what_it_sends_and_keeps_is_what_the_formulas_say(layout: str, changes: dict[str, Any]) -> None:
    job = make_job(layout, **changes)
    seen = run_ranks(job.layout.dp, kept_and_sent, layout, changes)[0]
    said = {key: what.value for key, what in expected_of_deepspeed(job) if not key.startswith("memory_deviation")}
    assert {key: seen[key] for key in said} == pytest.approx(said, rel=1e-12)


def test_of_one_rank_a_model_beyond_one_bucket_and_stage_3_no_traffic_is_predicted() -> None:
    for layout, shape in (("tp1+zero1", "llama-tiny"), ("dp2+zero1", "llama-1b"), ("dp2+zero3", "llama-tiny")):
        keys = [key for key, _ in expected_of_deepspeed(make_job(layout, shape=shape))]
        assert keys
        assert all(key.startswith("memory_") for key in keys)


SUITE = """
suite: engines
question: Is our ZeRO as fast as DeepSpeed's?
benchmarks:
  - benchmark: train_step
    shape: llama-tiny
    seq_len: 32
    global_batch_size: 4
    layouts: [dp2+zero1, dp2+zero3]
    trainer: [ours, deepspeed]
    dtype: bfloat16
    iterations: 3
    warmup: 1
cpu: {num_ranks: 2}
"""


@pytest.mark.in_turn
@pytest.mark.gloo
def test_a_suite_runs_it_beside_ours_and_holds_both_against_each_other(tmp_path: Any) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    run = tmp_path / "run"
    main(["run", str(tmp_path / "suite.yaml"), "--out", str(run), "--device", "cpu"], standalone_mode=False)
    rows, wide = clusterbench.read_rows(run), clusterbench.wide_rows(run)
    assert [*wide["status"]] == ["ok"] * 4
    assert wide["loss"].max() == pytest.approx(wide["loss"].min(), rel=1e-3)
    flops = rows[(rows["metric"] == "executed_flops") & rows["expected"].notna()]
    assert len(flops) >= 4
    assert (flops["value"] == flops["expected"]).all()
    agreement = rows[rows["metric"] == "agreement"]
    assert set(agreement["case"]) == set(wide["case"])
