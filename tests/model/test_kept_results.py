"""What selective recomputation keeps, lets go of and takes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from clusterbench.model import kept_results
from clusterbench.model.kept_results import selective_contexts

SIZE = 16


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A group of one rank, over which sums are sums of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: object, x: Tensor) -> Tensor:
        sent = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
        return torch.ops._c10d_functional.wait_tensor(sent)  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        return gradient


def summed(x: Tensor) -> Tensor:
    return _Sum.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def weights(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE, SIZE, generator=generator).div_(4).requires_grad_() for _ in range(number)]


def plain(x: Tensor, w: list[Tensor]) -> Tensor:
    x = x + torch.tanh(x) @ w[0]
    return x + F.silu(torch.tanh(x) @ w[1]) @ w[2]


def over_ranks(x: Tensor, w: list[Tensor]) -> Tensor:
    """Each product that leaves is summed, in parts put in order as +sp cuts them."""
    x = x + summed(torch.cat((torch.tanh(x) @ w[0]).chunk(2)))
    return x + summed(torch.cat((F.silu(torch.tanh(x) @ w[1]) @ w[2]).chunk(2)))


def attended(x: Tensor, w: list[Tensor]) -> Tensor:
    """Ulysses: what attention gives is sent before a product reads it, and attention itself keeps it for backward."""
    heads = [(x @ weight).view(1, 1, -1, SIZE) for weight in w[:3]]
    return x + summed(F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)).view_as(x)


LAYERS: list[Callable[[Tensor, list[Tensor]], Tensor]] = [plain, over_ranks, attended]


def gradients(layer: Callable[[Tensor, list[Tensor]], Tensor], selective: bool) -> list[Tensor]:
    x, w = torch.linspace(-1, 1, 8 * SIZE).view(8, SIZE).requires_grad_(), weights(3)
    y = x
    for _ in range(2):
        y = checkpoint(layer, y, w, use_reentrant=False, context_fn=selective_contexts) if selective else layer(y, w)
    y.square().sum().backward()
    return [tensor.grad for tensor in (x, *w) if tensor.grad is not None]


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_are_those_of_a_layer_that_keeps_all(layer: Callable[[Tensor, list[Tensor]], Tensor]) -> None:
    kept, again = gradients(layer, selective=False), gradients(layer, selective=True)
    assert len(kept) == 4
    assert all(map(torch.equal, kept, again))


@pytest.mark.parametrize(
    ("layer", "held"),
    [
        (plain, {"aten::mm": [True, True, False]}),
        (
            over_ranks,
            {
                "aten::mm": [False, True, False],
                "_c10d_functional::all_reduce": [True, False],
                "_c10d_functional::wait_tensor": [True, False],
            },
        ),
        (
            attended,
            {
                "aten::mm": [True, True, True],
                "aten::_scaled_dot_product_flash_attention_for_cpu": [True],
                "_c10d_functional::all_reduce": [False],
                "_c10d_functional::wait_tensor": [False],
            },
        ),
    ],
)
def test_what_backward_does_not_read_is_let_go(
    layer: Callable[[Tensor, list[Tensor]], Tensor], held: dict[str, list[bool]]
) -> None:
    x = torch.randn(8, SIZE, requires_grad=True)
    keeping, _ = selective_contexts()
    assert isinstance(keeping, kept_results._Keeping)
    with keeping:
        layer(x, weights(3))
    by_name = {operator.name(): results for operator, results in keeping._kept.items()}
    assert {name: [not result.is_gone for result in results] for name, results in by_name.items()} == held
    gone = [result.value for results in by_name.values() for result in results if result.is_gone]
    assert gone
    assert all(value.untyped_storage().nbytes() == 4 for value in gone)


def test_a_result_that_is_written_to_is_refused() -> None:
    """What backward gets of it would be another than what forward had."""

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh((x @ w).add_(1.0))

    with pytest.raises(RuntimeError, match=r"add_.* writes to a result that selective recomputation has kept"):
        checkpoint(layer, torch.randn(8, SIZE), weights(1)[0], use_reentrant=False, context_fn=selective_contexts)


def test_a_product_that_is_sent_and_then_read_is_refused() -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        product = x @ w
        return summed(product) + torch.tanh(product)

    with pytest.raises(RuntimeError, match="tanh reads what selective recomputation let go of when it was sent"):
        checkpoint(layer, torch.randn(8, SIZE), weights(1)[0], use_reentrant=False, context_fn=selective_contexts)


def test_a_second_backward_is_refused() -> None:
    x = torch.randn(8, SIZE, requires_grad=True)
    y = checkpoint(plain, x, weights(3), use_reentrant=False, context_fn=selective_contexts).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="more often than forward did: it goes through the layer a second time"):
        y.backward()


def test_a_compiler_gets_contexts_that_it_knows() -> None:
    x, w = torch.randn(8, SIZE, requires_grad=True), weights(3)

    def layer(x: Tensor) -> Tensor:
        return checkpoint(plain, x, w, use_reentrant=False, context_fn=selective_contexts)  # type: ignore[no-any-return]

    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    (compiled,) = torch.autograd.grad(torch.compile(layer, backend="aot_eager")(x).sum(), x)
    assert torch.allclose(expected, compiled)
