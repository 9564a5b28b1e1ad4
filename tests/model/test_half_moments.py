"""AdamW with moments in fewer bits is torch's AdamW, but for their rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clusterbench.model import half_moments
from clusterbench.model.half_moments import HalfMomentsAdamW

SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    sizes = (40, 30), (7,), (1, 1)
    return [nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)) for size in sizes]


def stepped(optimizer_of: Any, dtype: torch.dtype = torch.float32, steps: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    parameters = weights(dtype)
    optimizer = optimizer_of(parameters)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
        optimizer.step()
    return [parameter.detach().double() for parameter in parameters]


def own(moments: torch.dtype) -> Any:
    return lambda parameters: HalfMomentsAdamW(parameters, moments=moments, **SETTINGS)


def of_torch(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, fused=True, **SETTINGS)


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
def test_in_equal_dtypes_it_is_torchs(dtype: torch.dtype, rounding: float) -> None:
    for ours, theirs in zip(stepped(own(dtype), dtype), stepped(of_torch, dtype), strict=True):
        assert float((ours - theirs).norm()) <= rounding * float(theirs.norm())


def test_moments_in_bfloat16_change_updates_by_their_rounding() -> None:
    before, exact = weights(torch.float64), stepped(of_torch, torch.float64)
    off = [
        float((ours - wanted).norm() / (wanted - start.detach()).norm())
        for ours, wanted, start in zip(stepped(own(torch.bfloat16)), exact, before, strict=True)
    ]
    assert 1e-4 < max(off) < 2**-7


def test_pieces_change_nothing(monkeypatch: Any) -> None:
    whole = stepped(own(torch.bfloat16))
    monkeypatch.setattr(half_moments, "PIECE", 7)
    for in_pieces, at_once in zip(stepped(own(torch.bfloat16)), whole, strict=True):
        assert torch.equal(in_pieces, at_once)


def test_a_weight_without_a_gradient_stays_and_has_no_moments() -> None:
    (first, *_) = parameters = weights(torch.float32)
    optimizer = own(torch.bfloat16)(parameters)
    before = first.detach().clone()
    optimizer.step()
    assert torch.equal(first.detach(), before)
    assert not optimizer.state[first]


def test_moments_are_kept_in_what_was_asked() -> None:
    parameters = weights(torch.float32)
    optimizer = own(torch.bfloat16)(parameters)
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.step()
    assert {moment.dtype for moment in optimizer.state[parameters[0]].values()} == {torch.bfloat16}
