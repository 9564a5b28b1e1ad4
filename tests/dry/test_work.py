"""FLOPs and bytes by part and kind: against a count by hand, and in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # has operators of its own
from torch import Tensor

from clusterbench.cluster import accelerators
from clusterbench.dry.processes import dry_ranks
from clusterbench.dry.work import kind_of, moved_by
from clusterbench.dry.work_text import roofline_of, work_text
from clusterbench.engine.launches import computes
from clusterbench.job.dry import COPIES, ELEMENTWISE, LOOK_UPS, NORMS, SHARDS, UPDATE, DryRank, Work
from clusterbench.job.flops import (
    ATTENTION,
    BACKWARD,
    CAUSAL_ATTENTION,
    FLOAT8_GRADIENTS,
    FLOAT8_PRODUCTS,
    FORWARD,
    PRODUCTS,
)
from clusterbench.parallel import from_options
from clusterbench.trainers.ours import Ours
from tests.training.jobs import Case, make_job, name_of

CARD = replace(
    accelerators()["h100-sxm-80gb"], name="a-card", peak_flops_per_s={"bfloat16": 1e14}, memory_bytes_per_s=1e12
)


def dry(case: Case) -> DryRank:
    layout, options, changes = case
    (found,) = dry_ranks(Ours(), make_job(layout, device="cuda", **changes), from_options(options), "megatron", [0])
    return found


@pytest.mark.gloo
def test_a_layer_is_what_a_count_by_hand_gives() -> None:
    of_heads = {"shape": "llama-tiny-mha"}  # for groups of them a GPU has no kernel in float32
    rank = dry(("tp1", {}, {**of_heads, "dtype": "float32", "seq_len": 64, "global_batch_size": 2}))
    work = {(each.where, each.kind, each.during): each for each in rank.work}
    shape = make_job(**of_heads).shape
    tokens, width, inner, layers, each = 2 * 64, shape.hidden_size, shape.ffn_hidden_size, shape.num_layers, 4
    # gate and up: x and a matrix in, inner out; down the other way around
    of_matrix = (tokens * width + width * inner + tokens * inner) * each
    up, backward = work["layers.*.feed_forward", PRODUCTS, FORWARD], work["layers.*.feed_forward", PRODUCTS, BACKWARD]
    assert (up.count, up.flops, up.moved_bytes) == (
        3 * layers,
        3 * layers * 2 * tokens * width * inner,
        3 * layers * of_matrix,
    )
    assert up.written_bytes == layers * tokens * (2 * inner + width) * each
    assert (backward.count, backward.flops, backward.moved_bytes) == (2 * up.count, 2 * up.flops, 2 * up.moved_bytes)
    norm = work["layers.*.attention_norm", NORMS, FORWARD]
    assert (norm.read_bytes, norm.written_bytes) == (
        layers * (tokens + 1) * width * each,
        layers * tokens * (width + 1) * each,  # and a number for each token, for backward
    )
    rows = work["embedding", LOOK_UPS, FORWARD]
    assert (rows.read_bytes, rows.written_bytes) == (tokens * (8 + width * each), tokens * width * each)
    parameters, tensors = shape.num_parameters * each, 2 * 1 + 1 + 9 * layers
    update = work["the optimizer", UPDATE, FORWARD]
    assert update.read_bytes - 4 * parameters == pytest.approx(4 * tensors, abs=4 * tensors)
    assert update.written_bytes - 3 * parameters == pytest.approx(4 * tensors, abs=4 * tensors)
    heads = shape.num_heads * shape.head_dim + 2 * shape.num_kv_heads * shape.head_dim
    attention = work["layers.*.attention", CAUSAL_ATTENTION, FORWARD]
    assert attention.read_bytes <= layers * tokens * 3 * shape.num_heads * shape.head_dim * each
    assert attention.read_bytes >= layers * tokens * heads * each


@pytest.mark.gloo
def test_weights_are_rounded_before_the_first_forward_and_not_in_the_loss() -> None:
    """On pp2 the first stage has no loss, and 'the loss' was said to copy all of its weights."""
    rank = dry(("pp2", {}, {"dtype": "bfloat16", "micro_batch_size": 1, "global_batch_size": 4}))
    copies = {each.where: each for each in rank.work if each.kind == COPIES and each.during == FORWARD}
    rounded = copies["the start"]
    assert rounded.read_bytes == pytest.approx(2 * rounded.written_bytes, rel=1e-3)
    assert rounded.written_bytes > 1e6
    assert "the loss" not in copies


FLOPS: list[Case] = [
    ("dp2-tp2+sp+zero3", {"recompute": "full"}, {"dtype": "bfloat16"}),
    ("pp2", {"schedule": "zbv"}, {"dtype": "bfloat16", "micro_batch_size": 1, "global_batch_size": 8}),
    ("dp2+ep2", {"routing": "balanced"}, {"shape": "moe-tiny", "dtype": "bfloat16"}),
]


@pytest.mark.gloo
@pytest.mark.parametrize("case", FLOPS, ids=name_of)
def test_the_flops_are_those_that_are_executed(case: Case) -> None:
    rank = dry(case)
    flops: dict[tuple[str, str], int] = {}
    for each in rank.work:
        if each.flops:
            flops[each.kind, each.during] = flops.get((each.kind, each.during), 0) + each.flops
    executed: dict[tuple[str, str], int] = {}
    for found in rank.executed:
        executed[found.kind, found.during] = executed.get((found.kind, found.during), 0) + found.flops
    assert flops == executed
    assert all(each.count > 0 for each in rank.work)
    assert not [each for each in rank.work if each.moved_bytes == 0]


def moved(func: Any, *args: Any, **kwargs: Any) -> tuple[str, int, int]:
    return kind_of(func), *moved_by(func, args, kwargs, func(*args, **kwargs))


def floats(*size: int) -> Tensor:
    return torch.zeros(size)


def test_operators_move_what_they_read_and_write() -> None:
    aten = torch.ops.aten
    x, rows = floats(10, 10), torch.zeros(5, dtype=torch.int64)
    assert moved(aten.add.Tensor, x, x) == (ELEMENTWISE, 800, 400)
    assert moved(aten.add_.Tensor, x, x.clone()) == (ELEMENTWISE, 800, 400)
    assert moved(aten.copy_.default, x, x.clone()) == (COPIES, 400, 400)
    assert moved(aten.zero_.default, x) == (COPIES, 0, 400)
    assert moved(aten.zeros_like.default, x) == (COPIES, 0, 400)
    assert moved(aten.cat.default, [x, x]) == (COPIES, 800, 800)
    assert moved(aten.embedding.default, x, rows) == (LOOK_UPS, 5 * 8 + 200, 200)
    given = floats(5, 10)
    assert moved(aten.index_put_.default, x, [rows], given) == (LOOK_UPS, 5 * 8 + 200 + 200, 200)
    assert moved(aten.index_add_.default, x, 0, rows, given) == (LOOK_UPS, 5 * 8 + 200 + 200, 200)
    assert moved(aten.sum.default, x) == (ELEMENTWISE, 400, 4)
    assert moved(aten.add.Tensor, floats(1, 10).expand(10, 10), x) == (ELEMENTWISE, 40 + 400, 400)
    assert moved(aten._foreach_mul_.Tensor, [x, x.clone()], floats()) == (ELEMENTWISE, 804, 800)
    assert moved(aten._foreach_copy_.default, [x], [x.clone()]) == (COPIES, 400, 400)
    moments = ([x], [x.clone()], [x.clone()], [x.clone()], [], [floats()])
    values = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
    update = aten._fused_adamw_.default
    assert moved(update, *moments, **values, amsgrad=False, maximize=False)[1:] == (1604, 1204)
    assert kind_of(torch.ops.fsdp.chunk_cat.default) == SHARDS
    whole = floats(20)
    outs = [floats(5), floats(15)]
    assert moved(torch.ops.fsdp.split_with_sizes_copy.default, whole, [5, 15], 0, out=outs) == (SHARDS, 80, 80)


def test_what_launches_nothing_is_no_work() -> None:
    aten = torch.ops.aten
    nothing = (aten.view.default, aten._unsafe_view.default, aten.empty_like.default, aten.t.default, aten.split.Tensor)
    assert not any(map(computes, (*nothing, torch.ops.prim.device.default, aten.promote_types.default)))
    assert all(map(computes, (aten.mm.default, aten.add_.Tensor, aten._foreach_copy_.default, aten.clone.default)))
    assert computes(torch.ops.fsdp.chunk_cat.default)
    assert computes(aten._local_scalar_dense.default)


def words(**changes: Any) -> list[str]:
    work = [
        Work("layers.0.mlp", FORWARD, PRODUCTS, 1, 10**12, 10**9, 0),
        Work("layers.*.mlp", BACKWARD, PRODUCTS, 2, 2 * 10**12, 10**9, 10**9),
        Work("the optimizer", FORWARD, UPDATE, 1, 0, 2 * 10**10, 10**10),
        *(Work(f"part{index:02}", FORWARD, COPIES, 1, 0, 10**9, 0) for index in range(changes.get("parts", 0))),
    ]
    return list(work_text(work, changes.get("card"), changes.get("dtype", "bfloat16")))


def test_the_largest_come_first_and_the_rest_is_summed_up() -> None:
    lines = words()
    assert [line.split() for line in lines[2:]] == [
        ["layers.*.mlp", "products", "3", "3.000", "3.000", "1000.0"],
        ["the", "optimizer", "update", "1", "0.000", "30.000", "0.0"],
        ["total", "4", "3.000", "33.000", "90.9"],
    ]
    many = words(parts=20)
    assert len(many) == 2 + 11 + 2
    assert many[-2].split() == ["the", "rest", "11", "0.000", "11.000", "0.0"]
    assert many[-1].split() == ["total", "24", "3.000", "53.000", "56.6"]


def test_a_card_gives_a_bound_and_says_that_it_is_one() -> None:
    *_, products, update, total, sentence = words(card=CARD)
    assert (products.split()[-1], update.split()[-1], total.split()[-1]) == ("30.00", "30.00", "60.00")
    assert sentence.startswith("at least: the bound of a-card's roofline, no prediction: each operator at")
    assert "100 TFLOP/s or 1.00 TB/s" in sentence
    assert roofline_of(CARD, "float64") is None
    assert words(card=CARD, dtype="float64")[-1].startswith("no bound: the tables have no FLOP/s of a-card in float64")
    assert not any("at least" in line for line in words())


def of_kind(kind: str) -> Work:
    return Work("layers.*.attention", FORWARD, kind, 1, 10**12, 10**6, 10**6)


def test_of_causal_attention_half_is_the_least_as_kernels_leave_out_what_the_mask_hides() -> None:
    """The bound was twice what a kernel takes that computes what the mask shows."""
    roofline = roofline_of(CARD, "bfloat16")
    assert roofline is not None
    assert (roofline.bound_s(of_kind(ATTENTION)), roofline.bound_s(of_kind(CAUSAL_ATTENTION))) == (0.01, 0.005)
    *_, masked = work_text([of_kind(CAUSAL_ATTENTION)], CARD, "bfloat16")
    *_, unmasked = work_text([of_kind(PRODUCTS)], CARD, "bfloat16")
    assert masked.endswith("; of attention under the causal mask half of what is counted")
    assert "causal" not in unmasked


@pytest.mark.parametrize("kind", [FLOAT8_PRODUCTS, FLOAT8_GRADIENTS])
def test_float8_products_are_bounded_by_the_peak_of_float8(kind: str) -> None:
    """By that of bfloat16 they were to take at least twice as long as the data sheet's peak lets them."""
    fast = replace(CARD, peak_flops_per_s={"bfloat16": 1e14, "float8": 2e14})
    roofline = roofline_of(fast, "bfloat16")
    assert roofline is not None
    assert roofline.bound_s(of_kind(kind)) == 0.005
    sentence = list(work_text([of_kind(kind)], fast, "bfloat16"))[-1]
    assert "100 TFLOP/s (200 in float8) or 1.00 TB/s" in sentence
    unknown = list(work_text([of_kind(kind)], CARD, "bfloat16"))[-1]
    assert unknown.startswith("no bound: the tables have no FLOP/s of a-card in float8")
