"""AdamW with gradients in fewer bits than the weights is torch's AdamW with those gradients cast."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clusterbench.engine.compat import any_gradient
from clusterbench.model import narrow_gradients
from clusterbench.model.narrow_gradients import NarrowGradientsAdamW
from tests.model.test_half_moments import SETTINGS, weights


def stepped(is_own: bool, steps: int = 5) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(4)
    parameters = weights(torch.float32)
    optimizer = (
        NarrowGradientsAdamW(parameters, **SETTINGS)
        if is_own
        else torch.optim.AdamW(parameters, fused=True, **SETTINGS)
    )
    for _ in range(steps):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator).bfloat16()
            any_gradient(parameter)
            parameter.grad = gradient if is_own else gradient.float()
        optimizer.step()
    return parameters


@pytest.mark.parametrize("at_once", [2**24, 1201, 7])
def test_it_is_torchs_however_many_are_cast_at_once(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(narrow_gradients, "CAST_AT_ONCE", at_once)
    for ours, theirs in zip(stepped(is_own=True), stepped(is_own=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)  # a kernel has another loop for few elements
        assert ours.grad is not None
        assert ours.grad.dtype == torch.bfloat16


def test_no_more_is_cast_at_once_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cast: list[int] = []
    honest = narrow_gradients.fused_adamw

    def watched(tensors, steps, **settings):
        cast.append(sum(gradient.numel() for _, gradient, *_ in tensors))
        honest(tensors, steps, **settings)

    monkeypatch.setattr(narrow_gradients, "fused_adamw", watched)
    monkeypatch.setattr(narrow_gradients, "CAST_AT_ONCE", 500)
    stepped(is_own=True, steps=1)  # weights of 1200, 7 and 1 elements
    assert cast == [500, 500, 208]


def test_a_weight_without_a_gradient_is_left_alone() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = NarrowGradientsAdamW([weight], **SETTINGS)
    optimizer.step()
    assert weight.tolist() == [1, 1, 1]
    assert optimizer.state == {}
