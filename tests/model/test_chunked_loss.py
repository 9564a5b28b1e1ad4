"""Head and loss in chunks are head and loss: value and gradients, in every dtype."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clusterbench.model.chunked_loss import chunked_loss
from clusterbench.model.decoder import loss_of

TOKENS, HIDDEN, VOCABULARY = 24, 16, 50
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 0.01}


def found(dtype: torch.dtype, chunks: int) -> list[Tensor]:
    """Loss and both gradients, with all at once for no chunks; what comes in from behind is a third."""
    generator = torch.Generator().manual_seed(7)
    wide = torch.promote_types(dtype, torch.float32)
    x = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator, dtype=torch.float64).to(wide).requires_grad_()
    labels = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    labels[0], labels[-1] = 0, VOCABULARY - 1
    if chunks:
        loss = chunked_loss(x, weight, labels, chunks)
    else:
        loss = loss_of(F.linear(x, weight.to(dtype)).unsqueeze(0), labels)
    (loss / 3).backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert (x.grad.dtype, weight.grad.dtype, loss.dtype) == (dtype, wide, wide)
    return [loss.detach().double(), x.grad.double(), weight.grad.double()]


@pytest.mark.parametrize("chunks", [1, 2, 3, TOKENS])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_loss_and_gradients_are_those_of_all_tokens_at_once(dtype: torch.dtype, chunks: int) -> None:
    for one, other in zip(found(dtype, chunks), found(dtype, 0), strict=True):
        assert float((one - other).norm() / other.norm()) < ROUNDING[dtype]


def test_rounding_of_the_weights_gradient_does_not_grow_with_the_number_of_chunks() -> None:
    exact = found(torch.float64, 0)[2]
    few, many = (float((found(torch.bfloat16, chunks)[2] - exact).norm()) for chunks in (2, TOKENS))
    assert many < 1.2 * few


def test_loss_and_the_weights_gradient_of_bfloat16_add_up_over_chunks_in_float32() -> None:
    """Added up in bfloat16 they are within what rounding of the products leaves: all else found that right."""
    tokens, chunks = 64, 8
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator).requires_grad_()
    labels = torch.randint(VOCABULARY, (tokens,), generator=generator)
    loss = chunked_loss(x, weight, labels, chunks)
    loss.backward()
    losses, gradients = list[Tensor](), list[Tensor]()
    for x_CH, labels_C in zip(x.chunk(chunks), labels.chunk(chunks), strict=True):
        logits_CV = F.linear(x_CH, weight.detach().bfloat16()).float().requires_grad_()
        losses.append(F.cross_entropy(logits_CV, labels_C, reduction="sum") / tokens)
        losses[-1].backward()
        assert logits_CV.grad is not None
        gradients.append(logits_CV.grad.bfloat16().T @ x_CH)
    assert weight.grad is not None
    wanted = torch.stack(gradients).double().sum(0)
    assert float(loss.detach()) == pytest.approx(sum(float(each.detach()) for each in losses), rel=1e-6)
    assert float((weight.grad.double() - wanted).norm() / wanted.norm()) < 1e-5


def test_logits_far_from_zero_do_not_overflow() -> None:
    x = torch.full((2, 1), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = chunked_loss(x, weight, torch.tensor([0, 1]), 2)
    loss.backward()
    assert float(loss.detach()) == 1e4
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([[0.0], [1.0]]))
