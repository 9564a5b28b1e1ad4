"""torchtitan goes through the door every trainer takes, and what it sends and keeps is known to the byte."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import clusterbench
from clusterbench.cli import main
from clusterbench.cluster import Cluster
from clusterbench.errors import NotHere, ToolError, WrongResult
from clusterbench.job import weight_shapes
from clusterbench.parallel import active_in, from_options
from clusterbench.trainers import torchtitan, trainers
from clusterbench.trainers.torchtitan.expected import expected_of_torchtitan, states_of_rank, traffic_of_step
from clusterbench.trainers.torchtitan.model import OF_LAYER, OF_MODEL, our_name
from tests.ranks import run_ranks
from tests.training.jobs import TINY_VARIANTS, make_job, make_rig, parity_of

NAME = "torchtitan"
FLOAT32, BFLOAT16 = {"dtype": "float32"}, {"dtype": "bfloat16"}
FULL = {"recompute": "full"}


def objection(layout: str, shape: str = "llama-tiny", **options: Any) -> str | None:
    job = make_job(layout, shape=shape, **FLOAT32)
    return trainers()[NAME]().objection(job, active_in(job.layout, from_options(options)))


@pytest.mark.parametrize("layout", ["dp2+zero3", "tp2", "tp2+sp", "dp2-tp2+sp+zero3"])
def test_it_takes_fsdp_and_tp_with_and_without_recomputation_and_compiled(layout: str) -> None:
    assert objection(layout) is None
    assert objection(layout, **FULL, compile=True) is None


@pytest.mark.parametrize(
    ("layout", "options", "reason"),
    [
        ("tp1", {}, "trainer torchtitan shares a step over dp with zero3 and over tp; this is tp1"),
        ("dp2", {}, "trainer torchtitan shares a step over dp with zero3 and over tp; this is dp2"),
        ("dp2-tp2+zero1", {}, "over dp with zero3 and over tp; this is dp2-tp2+zero1"),
        ("pp2-tp2", {}, "but compile and recompute: full; this pp2-tp2 needs Pipeline"),
        ("dp2-cp2+zero3", {}, "but compile and recompute: full; this dp2-cp2+zero3 needs ContextParallel"),
        ("dp2+zero3", {"offload": True}, "but compile and recompute: full; this dp2+zero3 needs FullySharded"),
        ("tp2", {"recompute": "selective"}, "but compile and recompute: full; this tp2 needs Recompute"),
        ("tp2+sp", {"async_tp": True, "compile": True}, "recompute: full; this tp2+sp needs Compile"),
    ],
)
def test_it_refuses_what_it_cannot_share(layout: str, options: dict[str, Any], reason: str) -> None:
    assert (objection(layout, **options) or "").endswith(reason)


@pytest.mark.parametrize(
    ("layout", "changes", "reason"),
    [
        ("tp2", {"shape": "llama-odd-vocabulary"}, "tp2 does not divide the 1023 rows of the vocabulary of llama-tiny"),
        ("tp2", {"shape": "llama-odd-channels"}, "tp2 does not divide the 383 feed-forward channels of llama-tiny"),
        ("tp2+sp", {"seq_len": 17}, "+sp cuts seq_len 17 over tp2, which does not divide it"),
    ],
)
def test_it_refuses_what_ranks_of_tp_would_not_have_as_much_of(
    layout: str, changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"llama-odd-vocabulary": {"vocab_size": 1023}, "llama-odd-channels": {"ffn_hidden_size": 383}}
    for name, sizes in odd.items():
        monkeypatch.setitem(TINY_VARIANTS, name, sizes)
    job = make_job(layout, **FLOAT32, **changes)
    said = trainers()[NAME]().objection(job, active_in(job.layout, from_options({})))
    assert (said or "").startswith(reason)


def test_it_refuses_experts_few_kv_heads_float64_and_narrow_numbers() -> None:
    def of(**changes: Any) -> str:
        job = make_job("tp2", **changes)
        return trainers()[NAME]().objection(job, active_in(job.layout, from_options({}))) or ""

    assert of(**FLOAT32, shape="moe-tiny") == "trainer torchtitan runs dense models here; moe-tiny has 8 experts"
    assert of() == "trainer torchtitan runs in float32 and bfloat16; this tp2 is in float64"
    assert of(**FLOAT32, shape="llama-tiny-mqa").endswith("1 kv heads of llama-tiny do not come out even over tp2")
    narrow = "this step has precision pure_bfloat16 and gradients of 2 bytes"
    assert of(**BFLOAT16, precision="pure_bfloat16").endswith(narrow)
    assert of(**BFLOAT16, gradient_dtype="bfloat16").endswith("precision float32_master and gradients of 2 bytes")


def test_without_the_package_a_case_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchtitan, "find_spec", lambda name: None)
    with pytest.raises(NotHere, match=r"not installed here: pip install 'clusterbench\[torchtitan\]'"):
        trainers()[NAME]().build(make_job("dp2+zero3"), from_options({}), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("lacking", ["components.loss", "models.llama3.parallelize", "models.common"])
def test_a_package_that_cannot_be_imported_is_named_with_what_it_lacks(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"torchtitan.{lacking}", None)
    with pytest.raises(
        ToolError, match=rf"found torchtitan 0\.3\.\d, and .* cannot import it: import of torchtitan.{lacking} halted"
    ):
        built_alone()


@pytest.mark.parametrize("gone", ["torchtitan.distributed.utils.set_spmd_backend", "torchtitan.config.CompileConfig"])
def test_of_another_version_in_which_names_moved_both_are_told(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gone)
    monkeypatch.setattr("clusterbench.trainers.torchtitan.step.version", lambda name: "0.9.1")
    with pytest.raises(ToolError, match=r"written for torchtitan 0\.3") as told:
        built_alone()
    assert gone.rpartition(".")[2] in str(told.value)
    assert "0.9.1" in str(told.value)


def built_alone() -> None:
    """As far as it comes without other ranks: to the model's configuration."""
    import torch

    from clusterbench.trainers.torchtitan.step import TorchtitanStep

    job = make_job("tp2", **FLOAT32)
    TorchtitanStep(job, from_options({}), NO_OTHERS, torch.device("cpu"))  # type: ignore[arg-type]


NO_OTHERS = SimpleNamespace(mesh={"dp": None, "tp": None})


def test_each_weight_of_ours_has_one_name_there() -> None:
    theirs = [*OF_MODEL, *(f"layers.3.{name}.weight" for name in OF_LAYER)]
    job = make_job(shape="llama-tiny")
    ours = {name.replace("layers.0.", "layers.3.") for name in weight_shapes(job) if not name.startswith("layers.3")}
    assert sorted(our_name(name) for name in theirs) == sorted(
        name for name in ours if ".1." not in name and ".2." not in name
    )


# What it computes, sends and keeps


def seen_of(layout: str, changes: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The proof, what is looked at behind the clock, and what was counted of a step of the job."""
    import torch

    from clusterbench.proof.last_update import check_last_update
    from clusterbench.training.passes import passes_of

    job, every = make_job(layout, **changes), from_options(options)
    seen = {"proof": parity_of(layout, options, changes, NAME)}
    torch.compiler.reset()  # as a run does behind the proof: of two lengths a compiler makes code for any
    rig = make_rig(job.layout)
    step = trainers()[NAME]().build(job, every, rig.grid, rig.device)
    for _ in range(3):
        step()
    seen["behind"] = check_last_update(step, rig, active_in(job.layout, every))
    passes = passes_of(step, rig)
    memory = passes["memory"]()
    seen["at rest"] = {name: memory[f"{name} at rest"] for name in ("parameters", "optimizer_state")}
    seen["sent"] = {(of["axis"], of["op"]): (of["count"], of["size_bytes"]) for of in passes["traffic"]()}
    seen["executed"] = Counter[tuple[str, str]]()
    for of in passes["executed"]():
        seen["executed"][of["kind"], of["during"]] += of["flops"]
    return seen


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "changes", "options"),
    [
        ("dp2+zero3", BFLOAT16, {}),
        ("tp2+sp", {**FLOAT32, "shape": "llama-tiny-tied"}, FULL),
        ("dp2-tp2+sp+zero3", BFLOAT16, FULL),
        pytest.param("dp2+zero3", {**FLOAT32, "shape": "llama-tiny-tied"}, FULL, marks=pytest.mark.matrix),
        pytest.param("tp2+sp", BFLOAT16, {}, marks=pytest.mark.matrix),
        pytest.param("tp2+sp", BFLOAT16, {"compile": True}, marks=pytest.mark.matrix),
        pytest.param("dp2+zero3", FLOAT32, {**FULL, "compile": True}, marks=pytest.mark.matrix),
        pytest.param("tp2", {**FLOAT32, "max_grad_norm": None}, {}, marks=pytest.mark.matrix),
        pytest.param("tp2", {**BFLOAT16, "shape": "llama-tiny-tied"}, FULL, marks=pytest.mark.matrix),
        pytest.param(
            "dp3+zero3", {**FLOAT32, "global_batch_size": 12, "shape": "llama-flat-tiny"}, {}, marks=pytest.mark.matrix
        ),
    ],
)
def test_it_computes_what_one_rank_computes_and_sends_and_keeps_what_formulas_say(
    layout: str, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    job = make_job(layout, **changes)
    active = active_in(job.layout, from_options(options))
    said = {(sent.axis, sent.op): (sent.count, sent.size_bytes) for sent in traffic_of_step(job, active)}
    kept = {category: size_bytes for category, (size_bytes, _) in states_of_rank(job).items()}
    ranks = run_ranks(job.layout.world_size, seen_of, layout, changes, options)
    assert isinstance(ranks[0]["proof"], dict), ranks[0]["proof"]
    assert ranks[0]["behind"]["last_update"] < 2
    assert ("clipping" in ranks[0]["behind"]) == (job.max_grad_norm is not None)
    assert ranks[0]["at rest"] == kept
    assert all(rank["sent"] == said for rank in ranks) or (not said and layout == "tp2")
    formulas = trainers()[NAME]().formulas(job, from_options(options), "megatron")
    assert [rank["executed"] for rank in ranks] == [*formulas.executed] or layout == "tp2"
    by_all = sum(sum(rank["executed"].values()) for rank in ranks)
    expected = trainers()[NAME]().predict(job, from_options(options), Cluster(1, job.layout.world_size, "cpu"), True)
    flops = [of.value for key, of in expected.items() if key.startswith("executed_flops[")]
    assert sum(flops) == (0 if layout == "tp2" else by_all)


def test_of_tp_without_sp_no_traffic_and_no_flops_are_predicted() -> None:
    job, every = make_job("dp2-tp2+zero3", **FLOAT32), from_options({})
    keys = [key for key, _ in expected_of_torchtitan(job, active_in(job.layout, every))]
    assert keys
    assert all(key.startswith("memory_") for key in keys)


# What would be wrong


def _same_tokens(step: Any) -> None:
    from clusterbench.training.data import micro_batches

    step.micro_batches = micro_batches(step.job, 0, step.micro_batches[0][0].new_tensor(range(step.job.seq_len)))


def _twice_the_rate(step: Any) -> None:
    for group in step.optimizers[0].param_groups:
        group["lr"] *= 2


def _divided_by_ranks(step: Any) -> None:
    """As FSDP does where it is not told that the loss is divided already."""
    for module in step.modules[0].modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(2.0)


def _other_positions(step: Any) -> None:
    step._positions = step._positions.flip(-1).contiguous()


def _norms_of_one_slice(step: Any) -> None:
    """Without what sequence parallelism sums over tp: the gradient of norms is that of this rank's tokens."""
    import torch
    import torch.distributed as dist

    group = step.grid.group("tp")
    honest = step._utils.clip_grad_norm_

    def planted(weights: Any, *arguments: Any, **named: Any) -> Any:
        for weight in weights:
            if weight.dim() == 1 and dist.get_rank(group) == 1:
                weight.grad.to_local().mul_(torch.tensor(0.5))
        return honest(weights, *arguments, **named)

    step._utils = _With(step._utils, clip_grad_norm_=planted)


def _left_out_layer(step: Any) -> None:
    """Its weights have no gradient at all."""
    step.modules[0].layers["1"].forward = lambda hidden, *_, **__: hidden


def _keeps_in_the_second_step(step: Any) -> None:
    """Layers are not computed again in that one, and are in those in which something is counted."""
    for layer in step.modules[0].layers.values():
        honest = layer.forward

        def planted(*arguments: Any, layer: Any = layer, honest: Callable[..., Any] = honest, **named: Any) -> Any:
            return (layer._checkpoint_wrapped_module if step.num_steps == 1 else honest)(*arguments, **named)

        layer.forward = planted


def _no_clipping(step: Any) -> None:
    honest = step._utils.clip_grad_norm_
    step._utils = _With(step._utils, clip_grad_norm_=lambda weights, limit, **named: honest(weights, 1e9, **named))


class _With:
    """A module with other functions."""

    def __init__(self, module: Any, **others: Any) -> None:
        self._module, self._others = module, others

    def __getattr__(self, name: str) -> Any:
        return self._others[name] if name in self._others else getattr(self._module, name)


def verdicts(layout: str, changes: dict[str, Any], plants: list[Callable[[Any], None]]) -> list[str]:
    """What the proof says of each, as planted in the step as it is built."""
    from clusterbench.trainers.torchtitan.step import TorchtitanStep

    honest, said = TorchtitanStep.__init__, []
    for plant in plants:

        def planted(self: Any, *arguments: Any, plant: Callable[[Any], None] = plant) -> None:
            honest(self, *arguments)
            plant(self)

        TorchtitanStep.__init__ = planted  # type: ignore[method-assign]
        said.append(str(parity_of(layout, {}, changes, NAME)))
    return said


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("layout", "changes", "plants"),
    [
        (
            "dp2+zero3",
            BFLOAT16,
            {
                _same_tokens: "does not compute what one rank computes",
                _twice_the_rate: "what two steps changed of",
                _divided_by_ranks: "does not compute what one rank computes: the gradient of",
                _other_positions: "does not compute what one rank computes",
                _left_out_layer: "does not compute what one rank computes",
            },
        ),
        (
            "tp2+sp",
            FLOAT32,
            {
                _norms_of_one_slice: "the scale of the gradient of all weights",
                _twice_the_rate: "what two steps changed of",
                _other_positions: "does not compute what one rank computes",
            },
        ),
    ],
)
def test_what_it_would_do_wrong_is_wrong(
    layout: str, changes: dict[str, Any], plants: dict[Callable[[Any], None], str]
) -> None:
    for rank in run_ranks(2, verdicts, layout, changes, [*plants]):
        for verdict, what in zip(rank, plants.values(), strict=True):
            assert what in verdict


def clipped(layout: str, plant: Callable[[Any], None]) -> str:
    from clusterbench.proof.last_update import check_last_update

    job, every = make_job(layout, **FLOAT32), from_options({})
    rig = make_rig(job.layout)
    step: Any = trainers()[NAME]().build(job, every, rig.grid, rig.device)
    plant(step)
    step()
    step()
    try:
        return str(check_last_update(step, rig, active_in(job.layout, every)))
    except WrongResult as error:
        return str(error)


@pytest.mark.gloo
def test_behind_the_clock_gradients_that_were_not_clipped_are_seen() -> None:
    for verdict in run_ranks(2, clipped, "tp2+sp", _no_clipping):
        assert "that the optimizer took is not that of clipped ones" in verdict


def timed(layout: str, options: dict[str, Any], plants: list[Callable[[Any], None] | None]) -> list[str]:
    """What is said of three calls of each."""
    from clusterbench.proof.timed_step import TimedStep

    job, every, said = make_job(layout, **BFLOAT16), from_options(options), []
    rig = make_rig(job.layout)
    for plant in plants:
        step: Any = trainers()[NAME]().build(job, every, rig.grid, rig.device)
        if plant is not None:
            plant(step)
        calls = TimedStep(step, asked=3, active=active_in(job.layout, every))
        for _ in range(3):
            calls()
        try:
            calls.confirm(rig, is_first=False)
            said.append("")
        except WrongResult as error:
            said.append(str(error))
    return said


@pytest.mark.gloo
def test_behind_the_clock_layers_of_every_call_are_counted_that_were_to_be_computed_again() -> None:
    for healthy, planted in run_ranks(2, timed, "dp2+zero3", FULL, [None, _keeps_in_the_second_step]):
        assert not healthy
        assert "3 calls of dp2+zero3 made 8 layer forwards too few on rank 0" in planted


SUITE = """
suite: engines
question: Is our FSDP as fast as torchtitan's?
benchmarks:
  - benchmark: train_step
    shape: llama-tiny
    seq_len: 32
    global_batch_size: 4
    layouts: [dp2+zero3]
    trainer: [ours, torchtitan]
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
    assert [*wide["status"]] == ["ok"] * 2
    assert wide["loss"].max() == pytest.approx(wide["loss"].min(), rel=1e-3)
    for metric in ("executed_flops", "traffic_bytes", "collectives"):
        held = rows[(rows["metric"] == metric) & rows["expected"].notna()]
        assert len(held) >= 2
        assert [*held["value"]] == pytest.approx([*held["expected"]], rel=1e-12)
    agreement = rows[rows["metric"] == "agreement"]
    assert set(agreement["case"]) == set(wide["case"])
