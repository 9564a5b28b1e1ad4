"""Attention over a cut sequence equals attention over the whole one, and sends what the formula says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbench.expected.twin import twin_of
from clusterbench.job import activations
from clusterbench.parallel.context import KINDS, ContextParallel, positions
from tests.ranks import Calls, run_ranks
from tests.training.jobs import Totals, make_job

SEQ_LEN = 64
DEFECTS = ("none", "a hop is skipped", "the data of the other arrangement")


def error_of(kind: str, heads: int, kv_heads: int, defect: str, recompute: bool) -> dict[str, float]:
    """Largest difference of output and gradients to attention over the whole sequence, each on this rank's part."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import Tensor
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.checkpoint import checkpoint

    from clusterbench.job import sequence
    from clusterbench.model import context_attention

    rank, degree = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    sizes = {"q": heads, "k": kv_heads, "v": kv_heads, "weight": heads}
    whole = {
        name: torch.randn(2, number, SEQ_LEN, 16, dtype=torch.float64, generator=generator)
        for name, number in sizes.items()
    }
    wrong = {"zigzag": "ring", "all_gather": "ring", "ring": "zigzag", "ulysses": "zigzag"}[kind]
    arrangement = wrong if defect == DEFECTS[2] else kind
    held = sequence.positions(SEQ_LEN, degree, rank, arrangement)
    mine = torch.cat([torch.arange(part.start, part.stop) for part in held])
    arrived = context_attention._Hop.arrived
    if defect == DEFECTS[1]:
        context_attention._Hop.arrived = lambda hop: [arrived(hop), hop._leaving][1]  # type: ignore[method-assign]
    attention = context_attention.attend(kind, dist.group.WORLD)

    def gradients(attend: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = [tensors[name].clone().requires_grad_() for name in "qkv"]
        o = attend(*leaves)
        (o * tensors["weight"]).sum().backward()
        return {"o": o.detach()} | {f"d{name}": leaf.grad for name, leaf in zip("qkv", leaves, strict=True)}  # type: ignore[misc]

    def one_rank(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the plain formula, of which no rank's operator is a part
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def cut(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return checkpoint(attention, q, k, v, use_reentrant=False) if recompute else attention(q, k, v)

    expected = gradients(one_rank, whole)
    found = gradients(cut, {name: tensor[:, :, mine] for name, tensor in whole.items()})
    context_attention._Hop.arrived = arrived  # type: ignore[method-assign]
    return {name: (found[name] - expected[name][:, :, mine]).abs().max().item() for name in expected}


HEADS = [(2, 8, 4), (2, 8, 1), (4, 8, 4), (4, 8, 1), (4, 4, 4)]
"""Ranks, query heads and kv heads."""
SHOWN = [("ring", DEFECTS[1]), ("zigzag", DEFECTS[1]), *((kind, DEFECTS[2]) for kind in KINDS)]
ERRORS = Calls(
    error_of,
    [
        *((ranks, kind, heads, kv_heads, "none", False) for ranks, heads, kv_heads in HEADS for kind in KINDS),
        (8, "zigzag", 8, 4, "none", False),
        *((2, kind, 8, 4, "none", True) for kind in KINDS),
        *((2, kind, 8, 4, defect, False) for kind, defect in SHOWN),
    ],
)


@pytest.mark.gloo
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "heads", "kv_heads"), HEADS)
def test_output_and_gradients_are_those_of_one_rank(kind: str, ranks: int, heads: int, kv_heads: int) -> None:
    for errors in ERRORS(ranks, kind, heads, kv_heads, "none", False):
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.gloo
def test_zigzag_on_eight_ranks() -> None:
    for errors in ERRORS(8, "zigzag", 8, 4, "none", False):
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.gloo
@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_attention_is_the_same(kind: str) -> None:
    for errors in ERRORS(2, kind, 8, 4, "none", True):
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.gloo
@pytest.mark.parametrize(("kind", "defect"), SHOWN)
def test_a_defect_shows(kind: str, defect: str) -> None:
    every = ERRORS(2, kind, 8, 4, defect, False)
    for name in ("o", "dq", "dk", "dv"):
        assert max(errors[name] for errors in every) > 1e-3, name


def quarters_computed(kind: str, rank: int, degree: int) -> int:
    """Quarters of blocks (chunk against chunk) that a rank's operators are given."""
    from clusterbench.model.context_attention import _block

    blocks = [_block(kind, step, rank, 2) for step in range(degree)]
    return sum(len(range(2)[queries]) * len(range(2)[keys]) for queries, keys, _ in filter(None, blocks))


def test_masked_blocks_are_not_computed_and_zigzag_shares_the_rest_evenly() -> None:
    assert [quarters_computed("ring", rank, 4) for rank in range(4)] == [4, 8, 12, 16]
    assert [quarters_computed("zigzag", rank, 4) for rank in range(4)] == [4 + 3 * 2] * 4


def counted(kind: str, layout: str, changes: dict[str, Any], recompute: bool) -> Totals:
    """Collectives of as many attentions, forward and backward, as a rank has in one step."""
    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch.utils.checkpoint import checkpoint

    from clusterbench.engine.traffic import TrafficCounter
    from clusterbench.model.assembly import COMPUTE_DTYPES
    from clusterbench.model.context_attention import attend

    job = make_job(layout, **changes)
    group = dist.group.WORLD
    assert group is not None
    attention = attend(kind, group)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v).square()  # keeps the output, as a projection would

    heads, kv_heads = job.shape.num_heads, job.shape.num_kv_heads
    with TrafficCounter({group.group_name: "cp"}) as counter:
        for _ in range(job.gradient_accumulation_steps * len(job.layers)):
            q, k, v = (
                torch.ones(
                    (job.micro_batch_size, number, job.seq_len // job.layout.cp, job.shape.head_dim),
                    dtype=COMPUTE_DTYPES[job.dtype],
                    requires_grad=True,
                )
                for number in (heads, kv_heads, kv_heads)
            )
            o = checkpoint(layer, q, k, v, use_reentrant=False) if recompute else layer(q, k, v)
            o.sum().backward()
    return {key: (total.count, total.size_bytes) for key, total in counter.totals().items()}


def formula(kind: str, layout: str, changes: dict[str, Any], recompute: bool) -> Totals:
    job = make_job(layout, **changes)
    sums: Totals = {}
    parallelism = ContextParallel(context=kind)
    for sent in [*parallelism.traffic(job), *(parallelism.forward_traffic(job) if recompute else ())]:
        count, size_bytes = sums.get((sent.axis, sent.op), (0, 0))
        sums[sent.axis, sent.op] = count + sent.count, size_bytes + sent.size_bytes
    return sums


SENT: list[tuple[str, dict[str, Any], bool]] = [
    ("cp2", {}, False),
    ("cp2", {"dtype": "bfloat16"}, True),
    ("cp4", {"shape": "llama-tiny-mqa"}, False),
]
COUNTED = Calls(counted, [(make_job(case[0]).layout.cp, kind, *case) for case in SENT for kind in KINDS])


@pytest.mark.gloo
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "changes", "recompute"), SENT)
def test_counted_traffic_is_the_formulas(kind: str, layout: str, changes: dict[str, Any], recompute: bool) -> None:
    for found in COUNTED(make_job(layout).layout.cp, kind, layout, changes, recompute):
        assert found == formula(kind, layout, changes, recompute)


def test_a_rings_traffic_is_three_passes_of_keys_and_values() -> None:
    # llama-tiny: 4 layers, 4 kv heads of 16 channels; 2 forwards of 2 x 16 / 4 tokens; 8 bytes
    job = make_job("cp4")
    passed = 3 * (4 - 1) * 2 * len(job.layers)
    bytes_of_one = 2 * 8 * job.shape.num_kv_heads * job.shape.head_dim * 8
    assert [
        (message.op, message.count, message.size_bytes)
        for message in ContextParallel().traffic(job)
        if message.op == "send"
    ] == [
        ("send", passed // 3, passed // 3 * bytes_of_one),
        ("send", passed * 2 // 3, passed * 2 // 3 * bytes_of_one),
    ]


def kept(kind: str, layout: str, changes: dict[str, Any]) -> int:
    """Bytes that one attention and a product behind it keep for backward; a storage counts once."""
    import torch
    import torch.distributed as dist
    from torch import Tensor

    from clusterbench.model.assembly import COMPUTE_DTYPES
    from clusterbench.model.context_attention import attend

    job = make_job(layout, **changes)
    group = dist.group.WORLD
    assert group is not None
    q, k, v = (
        torch.ones(
            (job.micro_batch_size, job.seq_len // job.layout.cp, number, job.shape.head_dim),
            dtype=COMPUTE_DTYPES[job.dtype],
            requires_grad=True,
        ).transpose(1, 2)
        for number in (job.shape.num_heads, job.shape.num_kv_heads, job.shape.num_kv_heads)
    )
    storages: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attend(kind, group)(q, k, v).transpose(1, 2).flatten(2).square()
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


HELD: list[tuple[str, dict[str, Any]]] = [("cp2", {}), ("cp4", {"dtype": "bfloat16", "shape": "llama-tiny-mqa"})]
KEPT = Calls(kept, [(make_job(case[0]).layout.cp, kind, *case) for case in HELD for kind in KINDS])


@pytest.mark.gloo
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "changes"), HELD)
def test_attention_keeps_what_the_formula_says(kind: str, layout: str, changes: dict[str, Any]) -> None:
    job = make_job(layout, **changes)
    held = ContextParallel(context=kind).activations(activations(job), job)
    inside = ("query", "key", "value", "keys_of_others", "values_of_others", "output", "logsumexp", "output_of_heads")
    formula = sum(held.get(f"layer.attention.{name}", 0) for name in inside) / len(job.layers)
    assert KEPT(job.layout.cp, kind, layout, changes) == [formula] * job.layout.cp


def test_each_rank_holds_its_share_of_the_tokens() -> None:
    job = make_job("cp4", dtype="bfloat16")
    before = activations(job)
    after = ContextParallel(context="ring").activations(before, job)
    for name, size_bytes in before.items():
        assert after[name] == size_bytes / 4, name


def test_positions_of_sixteen_tokens_on_four_ranks() -> None:
    assert [list(positions(16, 4, rank, "ring")) for rank in range(4)] == [
        [range(4)],
        [range(4, 8)],
        [range(8, 12)],
        [range(12, 16)],
    ]
    assert [list(positions(16, 4, rank, "zigzag")) for rank in range(4)] == [
        [range(2), range(14, 16)],
        [range(2, 4), range(12, 14)],
        [range(4, 6), range(10, 12)],
        [range(6, 8), range(8, 10)],
    ]
    assert positions(16, 4, 1, "all_gather") == positions(16, 4, 1, "zigzag")
    assert positions(16, 4, 1, "ulysses") == positions(16, 4, 1, "ring")


@pytest.mark.parametrize(
    ("kind", "layout", "changes", "sentence"),
    [
        ("ring", "cp3", {}, "context ring cuts seq_len 16 over cp3: 5.333 tokens each"),
        (
            "zigzag",
            "cp4",
            {"seq_len": 20},
            "context zigzag cuts seq_len 20 into 8 chunks, two for each of cp4: 2.5 tokens each",
        ),
        (
            "all_gather",
            "cp4",
            {"seq_len": 20},
            "context all_gather cuts seq_len 20 into 8 chunks, two for each of cp4: 2.5 tokens each",
        ),
        (
            "ring",
            "cp4-tp8+sp",
            {},
            "+sp cuts the 4 tokens that cp4 leaves of seq_len 16 over tp8: 0.5 each",
        ),
        ("ulysses", "cp16", {}, "context ulysses spreads the 8 attention heads over cp16: 0.5 each"),
        (
            "ulysses",
            "cp4-tp4",
            {},
            "context ulysses spreads the 2 attention heads that tp4 leaves over cp4: 0.5 each",
        ),
        (
            "ulysses",
            "cp6",
            {"shape": "llama-3b", "seq_len": 48},
            "context ulysses needs kv heads that cp divides, or the other way round; the 8 and cp6 give 8 / 6 = 1.333",
        ),
    ],
)
def test_what_cannot_be_cut_is_said_with_numbers(
    kind: str, layout: str, changes: dict[str, Any], sentence: str
) -> None:
    assert ContextParallel(context=kind).objection(make_job(layout, **changes)) == sentence


@pytest.mark.parametrize("kind", ["ring", "zigzag", "all_gather"])
def test_heads_that_a_gpus_operators_do_not_take_are_refused_there(kind: str) -> None:
    """They are called as they are: torch's flash attention ends with "head_size must be a multiple of 8"."""
    context, odd = ContextParallel(context=kind), {"shape": "llama-tiny-uneven", "dtype": "bfloat16"}
    assert context.objection(make_job("cp2", device="cuda", **odd)) == (
        f"context {kind} calls operators of attention as they are, which on GPUs take heads of a multiple of 8 "
        "channels in bfloat16, and llama-tiny has heads of 10; context ulysses takes any"
    )
    assert context.objection(make_job("cp2", **odd)) is None
    assert ContextParallel(context="ulysses").objection(make_job("cp2", device="cuda", **odd)) is None
    in_float32 = context.objection(make_job("cp2", device="cuda", **(odd | {"dtype": "float32"})))
    assert in_float32 is not None
    assert "of a multiple of 4 channels in float32" in in_float32
    assert context.objection(make_job("cp2", device="cuda", **(odd | {"dtype": "float64"}))) is None


@pytest.mark.parametrize(("shape", "fewest"), [("llama-70b", 4), ("llama-405b", 2)])
def test_the_twin_has_heads_that_a_gpus_operators_take(shape: str, fewest: int) -> None:
    """With 64 or 128 heads it had 4 channels or 2: on GPUs the proof of each ring of such a model would have failed."""
    on_gpus = make_job("cp2", device="cuda", shape=shape, dtype="bfloat16")
    assert twin_of(on_gpus, [ContextParallel()]).shape.head_dim == 8
    assert twin_of(replace(on_gpus, dtype="float32"), [ContextParallel()]).shape.head_dim == 4
    assert twin_of(on_gpus, [ContextParallel(context="ulysses")]).shape.head_dim == fewest
    assert twin_of(replace(on_gpus, device="cpu"), [ContextParallel()]).shape.head_dim == fewest


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_cut_is_not_objected_to(kind: str) -> None:
    for layout in ("cp2", "cp4", "cp2-tp2+sp", "cp8"):
        assert ContextParallel(context=kind).objection(make_job(layout)) is None


@pytest.mark.parametrize("causal", [True, False])
def test_attention_by_hand_is_the_operators(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # what float64 on CUDA has to do with
    import torch

    from clusterbench.engine import compat

    q, k, v, grad = (torch.randn(2, heads, 32, 16, dtype=torch.float64) for heads in (8, 4, 4, 8))

    def everything() -> tuple[torch.Tensor, ...]:
        o, lse = compat.flash_attention(q, k, v, causal)
        return o, lse, *compat.flash_attention_backward(grad, q, k, v, o, lse, causal)

    operators = everything()
    monkeypatch.setattr(compat, "_attention_operator", lambda q: "none")
    for by_hand, operator in zip(everything(), operators, strict=True):
        assert (by_hand - operator).abs().max() < 1e-12


@pytest.mark.parametrize(("operator", "dtype"), [("flash", "bfloat16"), ("efficient", "float32")])
def test_cudas_operators_take_the_arguments(operator: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # on meta tensors: names, numbers and shapes of arguments, no arithmetic
    import torch

    from clusterbench.engine import compat

    monkeypatch.setattr(compat, "_attention_operator", lambda q: operator)
    q, k, v = (torch.empty(2, heads, 40, 64, dtype=getattr(torch, dtype), device="meta") for heads in (8, 4, 4))
    o, lse = compat.flash_attention(q, k, v, True)
    assert (o.shape, lse.shape) == (q.shape, (2, 8, 40))
    gradients = compat.flash_attention_backward(o, q, k, v, o, lse, True)
    assert [gradient.shape for gradient in gradients] == [q.shape, k.shape, v.shape]


def watched(kind: str) -> float | None:
    """Time of a step's attention by a clock that goes on by one for each pair of a query and a key."""
    from unittest import mock

    import torch

    from clusterbench.model import context_attention
    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import make_job, make_rig

    now = [0.0]

    def counting(name: str, q_at: int) -> Any:
        operator = getattr(context_attention, name)

        def counted(*arguments: Any) -> Any:
            q, k, causal = arguments[q_at], arguments[q_at + 1], arguments[-1]
            now[0] += q.shape[2] * k.shape[2] / (2 if causal else 1)
            return operator(*arguments)

        return mock.patch.object(context_attention, name, counted)

    job = make_job("cp2", seq_len=64, global_batch_size=1, micro_batch_size=1, dtype="float32")
    step = TrainingStep(job, from_options({"context": kind}), make_rig(job.layout).grid, torch.device("cpu"))
    step()
    with (
        mock.patch("time.thread_time", side_effect=lambda: now[0]),
        counting("flash_attention", 0),
        counting("flash_attention_backward", 1),
    ):
        return context_attention.watch_attention(step, torch.device("cpu"))


def test_attention_takes_the_time_of_its_operators_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from clusterbench.model import context_attention

    now = [0.0]
    monkeypatch.setattr(context_attention.time, "thread_time", lambda: now[0])

    def took(seconds: float) -> Any:
        return lambda *_: now.__setitem__(0, now[0] + seconds)

    monkeypatch.setattr(context_attention, "flash_attention", took(0.25))
    monkeypatch.setattr(context_attention, "flash_attention_backward", took(0.5))

    def step() -> None:
        context_attention.flash_attention()
        now[0] += 8.0  # what else a step does
        context_attention.flash_attention_backward()

    assert context_attention.watch_attention(step, torch.device("cpu")) == 0.75


@pytest.mark.gloo
def test_a_contiguous_ring_gives_its_last_rank_more_to_do() -> None:
    first, last = run_ranks(2, watched, "ring")
    assert first is not None
    assert last == 3 * first > 0  # in squares of the mask


@pytest.mark.gloo
def test_ulysses_has_no_attention_of_its_own_to_watch() -> None:
    assert run_ranks(2, watched, "ulysses") == [None, None]
