"""What expert parallelism says of a job, and that a layer of experts sends it."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from clusterbench.job import TrainingJob
from clusterbench.job.experts import even_tokens, expert_activations, expert_weight_shapes
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Twin
from clusterbench.parallel.expert import ExpertParallel
from clusterbench.shape import named_shape
from tests.model.test_experts import make_layer, make_table
from tests.ranks import run_ranks
from tests.training.jobs import make_job


def moe_job(layout: str, **changes: Any) -> TrainingJob:
    return make_job(layout, **{"shape": "moe-tiny", **changes})


def objection(layout: str, options: dict[str, Any] | None = None, **changes: Any) -> str | None:
    return ExpertParallel(**options or {}).objection(moe_job(layout, **changes))


WITH_EXPERTS = (
    "shapes with experts are mixtral-8x22b, mixtral-8x7b, moe-flat-tiny, moe-shared-tiny, moe-tiny, olmoe-1b-7b"
)


@pytest.mark.parametrize(
    ("layout", "options", "changes", "message"),
    [
        (
            "dp2+ep2",
            {},
            {"shape": "llama-tiny"},
            f"+ep2 spreads experts, but llama-tiny has none; {WITH_EXPERTS}",
        ),
        (
            "dp2",
            {"routing": "balanced"},
            {"shape": "llama-tiny"},
            f"routing is balanced, but llama-tiny has none; {WITH_EXPERTS}",
        ),
        (
            "dp2",
            {"aux_loss": 0.01},
            {"shape": "llama-tiny"},
            f"aux_loss is 0.01, but llama-tiny has none; {WITH_EXPERTS}",
        ),
        ("dp16+ep16", {}, {}, "ep16 does not divide the 8 experts of moe-tiny: 8 / 16 = 0.5"),
        ("tp2", {}, {}, "with experts, tp2 needs +sp: each of 2 ranks would send the same tokens to them"),
        (
            "tp1",
            {},
            {"shape": "llama-tiny-odd", "dtype": "float32"},
            "torch's grouped products take channels in multiples of 4 (16 bytes) in float32, and ffn_hidden_size of "
            "llama-tiny is 66",
        ),
        (
            "tp1",
            {},
            {"shape": "llama-tiny-odd", "dtype": "bfloat16"},
            "torch's grouped products take channels in multiples of 8 (16 bytes) in bfloat16, and hidden_size of "
            "llama-tiny is 100",
        ),
        (
            "dp2+ep2",
            {"routing": "balanced"},
            {"seq_len": 15},
            "balanced routing does not come out even: micro_batch_size and seq_len give a rank 30 tokens, which are "
            "60 rows over 8 experts; a multiple of 4 tokens would",
        ),
        (
            "tp2+sp+ep2",
            {"routing": "balanced", "expert_overlap": True},
            {"seq_len": 4},
            "balanced routing does not come out even: micro_batch_size and seq_len give a rank 4 tokens, which are two "
            "halves of 8 rows over 8 experts; a multiple of 8 tokens would",
        ),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    layout: str, options: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    assert objection(layout, options, **changes) == message


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("tp1", {}),
        ("dp2", {"routing": "balanced"}),
        ("dp8+ep8", {"routing": "balanced", "expert_overlap": True}),
        ("dp2-cp2-tp2+sp+ep4", {"routing": "balanced"}),
    ],
)
def test_a_job_that_can_be_is_not(layout: str, options: dict[str, Any]) -> None:
    assert objection(layout, options) is None


def test_products_of_each_expert_alone_take_any_channels() -> None:
    assert objection("tp1", shape="llama-tiny-odd", dtype="float64") is None


def test_dense_shapes_are_left_alone() -> None:
    parallelism, job = ExpertParallel(), make_job("dp2-tp2")
    assert parallelism.objection(job) is None
    assert parallelism.activations({"layer.feed_forward.input": 8.0}, job) == {"layer.feed_forward.input": 8.0}
    assert [*parallelism.traffic(job)] == []
    assert parallelism.weight("layers.0.feed_forward.gate.weight", (384, 128), job) == (384, 128)
    assert parallelism.sums("layers.0.feed_forward.gate.weight", job) == ()


def test_experts_are_cut_and_everything_else_is_whole() -> None:
    job, parallelism = moe_job("dp4+ep4", shape="moe-shared-tiny"), ExpertParallel()
    sizes = expert_weight_shapes(job.shape)
    assert sum(map(prod, sizes.values())) == job.shape.ffn_parameters_per_layer
    left = {name: parallelism.weight(f"layers.3.{name}", size, job) for name, size in sizes.items()}
    assert left["feed_forward.experts.down"] == (256, 192)
    cut = {name for name, size in sizes.items() if left[name] != size}
    assert cut == {"feed_forward.experts.gate", "feed_forward.experts.up", "feed_forward.experts.down"}
    assert cut == {name for name in sizes if parallelism.splits(f"layers.3.{name}", job) == ("ep",)}


@pytest.mark.parametrize(
    ("layout", "experts", "router"),
    [
        ("dp4+ep4", (), ()),
        ("dp4+ep2", ("edp",), ()),
        ("dp2-tp2+sp+ep2", ("edp",), ("tp",)),
        ("dp2-tp2+sp+ep4", (), ("tp",)),
        ("dp2-tp2+sp", ("tp",), ("tp",)),
    ],
)
def test_gradients_are_summed_over_ranks_that_saw_other_tokens(
    layout: str, experts: tuple[str, ...], router: tuple[str, ...]
) -> None:
    job, parallelism = moe_job(layout), ExpertParallel()
    assert parallelism.sums("layers.0.feed_forward.experts.up", job) == experts
    assert parallelism.sums("layers.0.feed_forward.router.weight", job) == router
    assert parallelism.sums("layers.0.feed_forward.shared.up.weight", job) == router
    assert parallelism.sums("layers.0.attention.query.weight", job) == ()


def test_the_twins_sequence_is_even_in_every_piece() -> None:
    balanced = ExpertParallel(routing="balanced")
    assert even_tokens(named_shape("moe-tiny")) == 4
    assert balanced.twin(moe_job("dp2+ep2")) == Twin(seq_unit=4)
    assert balanced.twin(moe_job("cp2-tp2+sp+ep4")) == Twin(seq_unit=32)
    assert ExpertParallel().twin(moe_job("cp2-tp2+sp+ep4")) == Twin()


def test_traffic_of_a_balanced_load_by_hand() -> None:
    # 2 sequences of 16 tokens to 2 experts each: 64 rows of 128 x 8 B, out and in, forward and backward, in 4 layers
    # and 2 micro-batches
    (rows, back) = ExpertParallel(routing="balanced").traffic(moe_job("dp2+ep2"))
    assert (rows.axis, rows.op, rows.count + back.count) == ("ep", "all_to_all", 4 * 4 * 2)
    assert rows.size_bytes + back.size_bytes == 4 * 4 * 2 * 64 * 128 * 8


def test_bytes_of_real_routing_are_said_to_be_of_an_even_load() -> None:
    basis = ExpertParallel().traffic_basis(moe_job("dp2+ep2"))
    assert basis == {"ep": "bytes of an even load; the router decides how many rows each rank really gets"}
    assert ExpertParallel(routing="balanced").traffic_basis(moe_job("dp2+ep2")) == {}
    assert ExpertParallel().traffic_basis(moe_job("dp2")) == {}


def counted(
    layout: str, options: dict[str, Any], changes: dict[str, Any], recompute: str = "none"
) -> tuple[int, int, int, int]:
    """Calls and bytes of a stack of layers over all ranks, and what is said of it."""
    from functools import partial

    import torch
    import torch.distributed as dist
    from torch.utils.checkpoint import checkpoint, noop_context_fn

    from clusterbench.engine.traffic import TrafficCounter
    from clusterbench.model.kept_results import selective_contexts

    group = dist.group.WORLD
    assert group is not None
    job, parallelism = moe_job(layout, **changes), ExpertParallel(**options)
    ranks, rank, tokens = dist.get_world_size(), dist.get_rank(), job.residual_tokens
    settings = {"ep_group": group, "routing": parallelism.routing, "overlap": parallelism.expert_overlap}
    layers = [make_layer(job.shape, ranks, rank, job.dtype, **settings) for _ in job.layers]
    for layer in layers:
        if recompute != "none":
            layer.forward = partial(
                checkpoint,
                layer.forward,
                use_reentrant=False,
                context_fn=selective_contexts if recompute == "selective" else noop_context_fn,
            )
    x = make_table(f"x{rank}", tokens, job.shape.hidden_size, job.dtype)[None]
    with TrafficCounter({group.group_name: "ep"}) as counter:
        for _ in range(job.gradient_accumulation_steps):
            y = x.clone().requires_grad_()
            for layer in layers:
                y = layer(y)
            y.backward(torch.ones_like(y))
    total = counter.totals()["ep", "all_to_all"]
    assert len(counter.totals()) == 1
    said = [*parallelism.traffic(job), *(parallelism.forward_traffic(job) if recompute == "full" else ())]
    return total.count, total.size_bytes, sum(sent.count for sent in said), sum(sent.size_bytes for sent in said)


@pytest.mark.gloo
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("layout", "dtype"), [("dp2+ep2", "float64"), ("dp4+ep4", "bfloat16")])
def test_counted_traffic_of_balanced_routing_is_the_formulas(layout: str, dtype: str, overlap: bool) -> None:
    options = {"routing": "balanced", "expert_overlap": overlap}
    for count, size_bytes, *said in run_ranks(int(layout[2]), counted, layout, options, {"dtype": dtype}):
        assert [count, size_bytes] == said


@pytest.mark.gloo
@pytest.mark.parametrize("overlap", [False, True])
def test_counted_calls_of_real_routing_are_the_formulas_and_bytes_are_not_less(overlap: bool) -> None:
    seen = run_ranks(2, counted, "dp2+ep2", {"expert_overlap": overlap}, {})
    for count, size_bytes, calls, even_bytes in seen:
        assert count == calls
        assert even_bytes <= size_bytes < 2 * even_bytes  # the larger of what goes out and what comes in


@pytest.mark.gloo
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("options", [{"expert_overlap": True}, {"routing": "balanced"}])
def test_full_recomputation_sends_the_forward_again_and_selective_nothing(
    options: dict[str, Any], recompute: str
) -> None:
    for count, size_bytes, *said in run_ranks(2, counted, "dp2+ep2", options, {"dtype": "float32"}, recompute):
        assert count == said[0]
        assert size_bytes == said[1] or options.get("routing") != "balanced"


def test_recomputing_the_forward_sends_it_again() -> None:
    job, parallelism = moe_job("dp2-tp2+sp+ep4"), ExpertParallel(aux_loss=0.01)
    forward = [(sent.axis, sent.op, sent.count) for sent in parallelism.forward_traffic(job)]
    assert forward == [("ep", "all_to_all", 8), ("ep", "all_to_all", 16), ("tp", "all_reduce", 8)]


class Recorder:
    """An assembly that notes what it is asked."""

    def __init__(self, job: TrainingJob) -> None:
        from clusterbench.model.experts import MixtureOfExperts

        self.job, self.cuts = job, list[tuple[str, int, str]]()
        self.experts = [MixtureOfExperts(job.shape) for _ in job.layers]
        self.grid = SimpleNamespace(group=lambda axis: f"the group {axis}")

    def layers(self) -> Any:
        return iter([SimpleNamespace(feed_forward=experts) for experts in self.experts])

    def cut(self, name: str, dim: int, axis: str) -> None:
        self.cuts.append((name, dim, axis))


def test_every_layer_is_told_and_its_experts_are_cut() -> None:
    assembly: Any = Recorder(moe_job("dp2-cp2-tp2+sp+ep4"))
    ExpertParallel(routing="balanced", expert_overlap=True, aux_loss=0.01).apply(assembly)
    for experts in assembly.experts:
        assert (experts.routing, experts.overlap, experts.ep_group) == ("balanced", True, "the group ep")
        assert (experts.aux_loss, experts.aux_scale) == (0.01, 1.0)  # cp2 over two micro-batches
        assert experts.token_groups == ("the group cp", "the group tp")
    parts = [f"layers.{layer}.feed_forward.experts.{name}" for layer in range(4) for name in ("gate", "up", "down")]
    assert assembly.cuts == [(part, 0, "ep") for part in parts]


def test_without_ep_only_the_mathematics_is_set() -> None:
    assembly: Any = Recorder(replace(moe_job("tp1"), layout=ParallelLayout()))
    assembly.grid = None
    ExpertParallel(routing="balanced", expert_overlap=True).apply(assembly)
    assert {experts.routing for experts in assembly.experts} == {"balanced"}
    assert not any(experts.overlap or experts.ep_group for experts in assembly.experts)
    assert assembly.cuts == []


# What is kept for backward


def kept(name: str, dtype: str, overlap: bool) -> tuple[float, float]:
    """Bytes in tensors that a layer saves, weights left out, and what the ledger says."""
    import torch

    size_bytes = {"float64": 8, "float32": 4, "bfloat16": 2}[dtype]
    shape, tokens = named_shape(name).twin(1), 32
    layer = make_layer(shape, dtype="float64" if dtype == "float64" else "float32", overlap=overlap)
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Any) -> Any:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    x = make_table("x", tokens, shape.hidden_size, dtype).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x[None])
    held = sum(storage.nbytes() for pointer, storage in saved.items() if pointer not in weights)
    rounded = sum(map(prod, expert_weight_shapes(shape).values())) * size_bytes if size_bytes == 2 else 0
    said = expert_activations(shape, tokens, size_bytes)
    # The counts that a layer shows are not saved, and each half has its own ends of experts.
    said["expert_counts"] = shape.num_experts * 4 * (1 + overlap) * (size_bytes < 8)
    return held, sum(said.values()) + rounded


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["moe-tiny", "moe-shared-tiny"])
def test_what_a_layer_keeps_is_the_ledgers_to_the_byte(name: str, dtype: str, overlap: bool) -> None:
    held, said = kept(name, dtype, overlap)
    assert held == said


def test_ranks_of_tp_and_ep_share_what_is_kept() -> None:
    job = moe_job("tp2+sp+ep2")
    held = {f"layer.{name}": size for name, size in expert_activations(job.shape, 32, 8).items()}
    held |= {"layer.attention.input": 8.0}
    left = ExpertParallel().activations(held, job)
    rows = left.pop("result.sent.rows")  # as they came there, and as they came back
    assert rows == (held["layer.experts.input"] + held["layer.experts.output"]) / 2
    whole = {"layer.attention.input"}
    assert {name for name, size in left.items() if size == held[name] and size} == whole
    assert all(left[name] == size / 2 for name, size in held.items() if name not in whole)


def _loads(defect: bool) -> Any:
    """Rows of each layer that one rank of two counts, or why they are wrong."""
    from clusterbench.errors import WrongResult
    from clusterbench.model.experts import MixtureOfExperts
    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_rig

    job = moe_job("dp2+ep2", dtype="float32")
    rig, honest = make_rig(job.layout), MixtureOfExperts.forward
    step = TrainingStep(job, from_options({"expert_overlap": True}), rig.grid, rig.device)

    def forward(mixture: MixtureOfExperts, x_BSH: Any) -> Any:
        y_BSH = honest(mixture, x_BSH)
        mixture.last_counts = mixture.last_counts // 2
        return y_BSH

    if defect:
        MixtureOfExperts.forward = forward  # type: ignore[method-assign]
    try:
        return list(step._experts(rig).rows)
    except WrongResult as error:
        return str(error)
    finally:
        MixtureOfExperts.forward = honest  # type: ignore[method-assign]


@pytest.mark.gloo
def test_ranks_count_each_row_of_each_layer_once() -> None:
    job = moe_job("dp2+ep2")
    due = 2 * job.residual_tokens * job.shape.experts_per_token
    first, second = run_ranks(2, _loads, False)
    assert [sum(rows) for rows in zip(first, second, strict=True)] == [due] * job.num_layers


@pytest.mark.gloo
def test_a_rank_that_counts_half_of_its_rows_is_wrong() -> None:
    first, second = run_ranks(2, _loads, True)
    assert first == second
    assert "rows counted at the experts of a layer of dp2+ep2" in first
