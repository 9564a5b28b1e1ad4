"""A layer of experts over ranks against the same layer on one, and what it reports of itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from clusterbench.job.experts import UNEVEN, even_tokens
from clusterbench.shape import ModelShape, named_shape
from tests.ranks import run_ranks

TOKENS = 24
EXACT = 1e-12


def small(name: str = "moe-tiny", **changes: Any) -> ModelShape:
    return replace(named_shape(name).twin(1), **changes)


def make_layer(shape: ModelShape, ranks: int = 1, rank: int = 0, dtype: str = "float64", **settings: Any) -> Any:
    """A layer with the weights that depend on their names alone, and with the experts of one of some ranks."""
    import torch
    from torch import nn

    from clusterbench.model.experts import MixtureOfExperts
    from clusterbench.model.noise import fill_uniform

    layer = MixtureOfExperts(shape).to(getattr(torch, dtype))
    for name, weight in layer.named_parameters():
        fill_uniform(weight.detach(), 0, name, [0] * weight.dim(), 0.0, weight.shape[-1] ** -0.5)
    for name, weight in list(layer.experts.named_parameters()):
        setattr(layer.experts, name, nn.Parameter(weight.detach().chunk(ranks)[rank].clone()))
    for name, value in settings.items():
        setattr(layer, name, value)
    return layer


def make_table(name: str, rows: int, columns: int, dtype: str = "float64") -> Any:
    import torch

    from clusterbench.model.noise import fill_uniform

    table = torch.empty(rows, columns, dtype=getattr(torch, dtype))
    fill_uniform(table, 0, name, (0, 0), 0.0, 1.0)
    return table


def passed(layer: Any, x_TH: Any, gradient_TH: Any) -> dict[str, Any]:
    """Output and gradients of one forward and backward of some tokens, as one sequence."""
    x_TH = x_TH.clone().requires_grad_()
    y_BSH = layer(x_TH[None])
    y_BSH.backward(gradient_TH[None])
    gradients = {name: weight.grad for name, weight in layer.named_parameters()}
    return {"y": y_BSH[0].detach(), "x": x_TH.grad, **gradients}


def alone_and_shared(shape: ModelShape, skew: float, settings: dict[str, Any], spoil: float = 1.0) -> dict[str, float]:
    """How far each output and gradient of this rank is from the same part of what one rank gets."""
    import torch
    import torch.distributed as dist

    ranks, rank = dist.get_world_size(), dist.get_rank()
    x_TH = make_table("x", TOKENS * ranks, shape.hidden_size)
    gradient_TH = make_table("gradient", TOKENS * ranks, shape.hidden_size)
    overlap = settings.pop("overlap", False)
    whole = make_layer(shape, **settings)
    part = make_layer(shape, ranks, rank, ep_group=dist.group.WORLD, overlap=overlap, **settings)
    with torch.no_grad():
        for layer in (whole, part):  # expert 0 becomes very popular, the last one is never chosen
            layer.router.weight[0] += skew * x_TH.mean(0)
            layer.router.weight[-1] -= skew * x_TH.mean(0)
    if skew:
        x_TH = x_TH + x_TH.mean(0) * skew
    expected = passed(whole, x_TH, gradient_TH)
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    results = passed(part, x_TH[mine], gradient_TH[mine])
    off = {}
    for name, value in results.items():
        reference = expected[name]
        if name in ("y", "x"):
            reference = reference[mine]
        elif name.startswith("experts."):
            reference = reference.chunk(ranks)[rank]
            value = value * spoil
        else:  # each rank has seen its own tokens only
            value = value.clone()
            dist.all_reduce(value)
        off[name] = float((value - reference).abs().max() / reference.abs().max().clamp_min(1e-300))
    counts = whole.last_counts.chunk(ranks)[rank]
    off["last_counts"] = float((counts - part.last_counts).abs().max())
    off["empty"] = float((whole.last_counts == 0).sum())
    return off


@pytest.mark.gloo
@pytest.mark.parametrize("routing", ["real", "balanced", UNEVEN])
@pytest.mark.parametrize(
    ("ranks", "name", "overlap"),
    [(2, "moe-tiny", False), (2, "moe-shared-tiny", True), (4, "moe-shared-tiny", False), (4, "moe-tiny", True)],
)
def test_experts_over_ranks_compute_what_one_rank_computes(ranks: int, name: str, overlap: bool, routing: str) -> None:
    for off in run_ranks(ranks, alone_and_shared, small(name), 0.0, {"overlap": overlap, "routing": routing}):
        assert {what: value for what, value in off.items() if not value <= EXACT} == {}


@pytest.mark.gloo
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("experts", [4, 8])
def test_a_popular_expert_and_one_without_tokens_change_nothing(experts: int, overlap: bool) -> None:
    for off in run_ranks(4, alone_and_shared, small(num_experts=experts), 3.0, {"overlap": overlap}):
        assert off.pop("empty") >= 1
        assert {what: value for what, value in off.items() if not value <= EXACT} == {}


@pytest.mark.gloo
def test_an_expert_gradient_scaled_by_ranks_shows() -> None:
    for off in run_ranks(2, alone_and_shared, small(), 0.0, {}, 0.5):
        assert off["experts.gate"] == pytest.approx(0.5)
        assert off["router.weight"] <= EXACT


def reference(layer: Any, x_TH: Any) -> Any:
    """The same, token by token."""
    import torch
    import torch.nn.functional as F

    rows = []
    for x_H in x_TH:
        probabilities_E = (layer.router.weight @ x_H).softmax(0)
        best = probabilities_E.topk(layer.experts_per_token)
        weights = best.values / best.values.sum()
        stacked = layer.experts.matrices(x_TH.dtype)
        gate_EFH, up_EFH, down_EHF = (matrix.chunk(len(probabilities_E)) for matrix in stacked)
        row = sum(
            weight * (down_EHF[e] @ (F.silu(gate_EFH[e] @ x_H) * (up_EFH[e] @ x_H)))
            for weight, e in zip(weights, best.indices.tolist(), strict=True)
        )
        rows.append(row if layer.shared is None else row + layer.shared(x_H[None])[0])
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["moe-tiny", "moe-shared-tiny"])
def test_a_layer_is_mixtrals_formula_token_by_token(name: str) -> None:
    layer = make_layer(small(name))
    x_TH = make_table("x", TOKENS, small().hidden_size)
    assert float((layer(x_TH[None])[0] - reference(layer, x_TH)).detach().abs().max()) < EXACT


@pytest.mark.parametrize("name", ["moe-tiny", "moe-shared-tiny"])
def test_overlap_on_one_rank_changes_nothing_and_neither_do_lone_tokens(name: str) -> None:
    hidden = small().hidden_size
    for tokens in (1, 2, 7):
        x_TH, gradient_TH = make_table("x", tokens, hidden), make_table("gradient", tokens, hidden)
        whole, halves = (passed(make_layer(small(name), overlap=on), x_TH, gradient_TH) for on in (False, True))
        for what in whole:
            assert float((whole[what] - halves[what]).abs().max()) < EXACT, what


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [[5, 0, 3, 9], [0, 0, 17, 0], [0, 0, 0, 0]])
def test_the_grouped_product_is_a_loop_over_experts(rows: list[int], dtype: str) -> None:
    import torch

    from clusterbench.model.experts import grouped_product

    x, weight = make_table("x", sum(rows), 16, dtype), make_table("weight", 4 * 24, 16, "float32").view(4, 24, 16)
    results = []
    for grouped in (True, False):
        a, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
        if grouped:
            y = grouped_product(a, w.to(a.dtype), torch.tensor(rows).cumsum(0, dtype=torch.int32))
        else:
            y = torch.cat([part @ expert_w.T for part, expert_w in zip(a.split(rows), w.to(a.dtype), strict=True)])
        y.backward(make_table("gradient", sum(rows), 24, dtype))
        assert w.grad is not None
        assert w.grad.dtype == torch.float32
        results.append((y.detach(), a.grad, w.grad))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


def test_balanced_routing_gives_every_expert_as_many_rows() -> None:
    layer = make_layer(small(), routing="balanced")
    layer(make_table("x", TOKENS, small().hidden_size)[None])
    assert layer.last_counts.tolist() == [TOKENS * 2 // 8] * 8


@pytest.mark.parametrize(("experts", "each"), [(8, 2), (8, 1), (8, 3), (6, 4), (2, 2)])
def test_uneven_routing_leaves_no_expert_out_and_sends_no_token_twice(experts: int, each: int) -> None:
    shape = small(num_experts=experts, experts_per_token=each)
    layer = make_layer(shape, routing=UNEVEN)
    tokens = 2 * even_tokens(shape)
    chosen_TK = layer._by_place(make_table("x", tokens, shape.hidden_size))
    assert all(len(set(of_token)) == each for of_token in chosen_TK.tolist())
    rows = Counter(chosen_TK.flatten().tolist())
    assert set(rows) == set(range(experts))
    assert (rows[0] > max(rows[expert] for expert in range(1, experts))) == (experts > each)


def test_balanced_routing_still_teaches_the_router() -> None:
    x_TH = make_table("x", TOKENS, small().hidden_size)
    results = passed(make_layer(small(), routing="balanced"), x_TH, x_TH)
    assert float(results["router.weight"].abs().max()) > 0.01


def test_counts_tell_the_imbalance() -> None:
    shape = small(experts_per_token=1)
    layer = make_layer(shape)
    x_TH = make_table("x", 1, shape.hidden_size).expand(TOKENS, -1)  # the same token again and again
    layer(x_TH[None])
    assert sorted(layer.last_counts.tolist()) == [0] * 7 + [TOKENS]


def test_imbalance_is_the_fullest_expert_over_the_mean_in_the_worst_layer() -> None:
    import torch

    from clusterbench.model.experts import watch_experts

    layers = [make_layer(small()) for _ in range(2)]
    counts = [2] * 8, [0, 0, 1, 1, 1, 1, 2, 10]
    for layer, of_layer in zip(layers, counts, strict=True):
        layer.last_counts = torch.tensor(of_layer)
    load = watch_experts(lambda: None, layers, torch.device("cpu"))
    assert (load.imbalance, load.rows, load.expert_rows) == (5.0, [16, 16], [*counts])


def test_the_margin_is_noted_only_when_asked_for_and_is_the_smallest() -> None:
    layer = make_layer(small())
    x_TH = make_table("x", TOKENS, small().hidden_size)
    layer(x_TH[None])
    assert layer.smallest_margin is None
    layer.record_margin = True
    margins = (x_TH @ layer.router.weight.detach().T).softmax(-1).sort(descending=True).values
    first = float((margins[:8, 1] - margins[:8, 2]).min())
    layer(x_TH[None, :8])
    assert float(layer.smallest_margin) == pytest.approx(first, rel=1e-12)
    layer(x_TH[None])
    assert float(layer.smallest_margin) == pytest.approx(float((margins[:, 1] - margins[:, 2]).min()), rel=1e-12)


def test_timers_are_opened_around_the_three_parts() -> None:
    from contextlib import nullcontext

    opened: list[str] = []

    def timer(what: str) -> Any:
        opened.append(what)
        return nullcontext()

    make_layer(small(), timers=timer)(make_table("x", TOKENS, small().hidden_size)[None])
    assert opened == ["dispatch", "dispatch", "experts", "combine", "combine"]


# The load-balancing loss


def balancing_loss(layer: Any, x_TH: Any) -> Any:
    probabilities_TE = (x_TH @ layer.router.weight.T).softmax(-1)
    chosen = probabilities_TE.topk(layer.experts_per_token).indices.flatten()
    share_E = chosen.bincount(minlength=layer.num_experts).to(x_TH.dtype) / len(chosen)
    return layer.num_experts * (share_E * probabilities_TE.mean(0)).sum()


def test_the_load_balancing_loss_adds_its_gradient_and_changes_no_output() -> None:
    import torch

    x_TH = make_table("x", TOKENS, small().hidden_size)
    without = passed(make_layer(small()), x_TH, x_TH)
    layer = make_layer(small(), aux_loss=0.25, aux_scale=0.5)
    results = passed(layer, x_TH, x_TH)
    loss = balancing_loss(layer, x_TH)
    (added,) = torch.autograd.grad(loss, layer.router.weight)
    assert float(layer.last_aux_loss) == pytest.approx(0.25 * float(loss.detach()), rel=1e-12)
    assert torch.equal(results["y"], without["y"])
    assert float((results["router.weight"] - without["router.weight"] - 0.125 * added).abs().max()) < EXACT


def test_the_load_balancing_loss_of_an_even_load_is_its_coefficient() -> None:
    layer = make_layer(small(), aux_loss=0.01, routing="balanced")
    layer(make_table("x", TOKENS, small().hidden_size)[None])
    assert float(layer.last_aux_loss) == pytest.approx(0.01, rel=1e-12)


def tokens_over_ranks() -> tuple[float, float, float]:
    import torch.distributed as dist

    assert dist.group.WORLD is not None
    shape, ranks, rank = small(), dist.get_world_size(), dist.get_rank()
    x_TH = make_table("x", TOKENS * ranks, shape.hidden_size)
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    whole = make_layer(shape, aux_loss=1.0)
    part = make_layer(shape, aux_loss=1.0, token_groups=(dist.group.WORLD,))
    expected, results = passed(whole, x_TH, x_TH), passed(part, x_TH[mine], x_TH[mine])
    loss, gradient = part.last_aux_loss.clone(), results["router.weight"]
    dist.all_reduce(loss)
    dist.all_reduce(gradient)
    off_x = (results["x"] - expected["x"][mine]).abs().max()
    off_router = (gradient - expected["router.weight"]).abs().max()
    return float(loss - whole.last_aux_loss), float(off_x), float(off_router)


@pytest.mark.gloo
def test_the_load_balancing_loss_of_tokens_over_ranks_is_that_of_one_rank() -> None:
    for off in run_ranks(2, tokens_over_ranks):
        assert max(map(abs, off)) < EXACT


# What an all-to-all may hide behind


def overlapped(overlap: bool) -> list[str]:
    """The order in which communication is started and waited for, and experts compute."""
    import torch.distributed as dist

    from clusterbench.model import experts

    calls: list[str] = []
    start, wait = experts.start_all_to_all, experts.wait_for

    def noted_start(*arguments: Any) -> Any:
        calls.append("start")
        return start(*arguments)

    def noted_wait(started: Any) -> Any:
        calls.append("wait")
        return wait(started)

    class Noted(experts.Experts):
        def forward(self, *arguments: Any) -> Any:
            calls.append("experts")
            y_RH = super().forward(*arguments)
            y_RH.register_hook(lambda gradient: calls.append("experts"))
            return y_RH

    experts.start_all_to_all, experts.wait_for = noted_start, noted_wait
    layer = make_layer(
        small(), dist.get_world_size(), dist.get_rank(), ep_group=dist.group.WORLD, overlap=overlap, routing="balanced"
    )
    layer.experts.__class__ = Noted
    x_TH = make_table("x", TOKENS, small().hidden_size)
    passed(layer, x_TH, x_TH)
    return calls


@pytest.mark.gloo
def test_with_overlap_another_all_to_all_is_in_flight_while_experts_compute() -> None:
    alone = ["start", "wait", "experts", "start", "wait"]
    assert run_ranks(2, overlapped, False)[0] == alone * 2
    calls = run_ranks(2, overlapped, True)[0]
    for halves in (calls[:10], calls[10:]):  # forward, backward
        in_flight = 0
        for event in halves:
            in_flight += {"start": 1, "wait": -1, "experts": 0}[event]
            assert event != "experts" or in_flight == 1, halves
        assert in_flight == 0
