"""Weights in bfloat16 are rounded by chance: right in the mean, and the same wherever an element is held."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from clusterbench.model import noise
from clusterbench.model.half_moments import HalfMomentsAdamW
from clusterbench.model.stochastic_rounding import StochasticRounding, WherePart, rounded

SETTINGS: dict[str, Any] = {
    "lr": 3e-4,
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "moments": torch.bfloat16,
}
MANY = 2**16


def bits(count: int = MANY, update: int = 1) -> torch.Tensor:
    return noise.noise(0, f"weight, update {update}", torch.arange(1), torch.arange(count))[0]


@pytest.mark.parametrize("value", [1.001, -1.001, 1.0077, 3e-4, -0.0412, 1e30, 2.0**-126 * 1.3])
def test_the_mean_of_many_roundings_is_the_value(value: float) -> None:
    values = torch.full((MANY,), value)
    results = rounded(values, bits()).double()
    below, above = sorted(set(results.tolist()))
    share = (float(values[0]) - below) / (above - below)
    deviation = (above - below) * math.sqrt(share * (1 - share) / MANY)
    assert below < float(values[0]) < above
    assert abs(float(results.mean()) - float(values[0])) < 4 * deviation


def test_every_outcome_of_the_bits_is_counted_once() -> None:
    """Of all 2**16 as many go up as the value is 2**-16ths of the way to the next number: not one too many."""
    for low in (0, 1, 0x7FFF, 0x8000, 0xFFFF):
        value = torch.tensor([0x3F800000 + low], dtype=torch.int32).view(torch.float32)
        results = rounded(value.expand(MANY).contiguous(), torch.arange(MANY))
        assert int((results > 1).sum()) == low


def test_a_number_of_bfloat16_stays_what_it_is() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -2.5, 1.0078125, 3.3895e38]).bfloat16()
    for all_bits in (0, 0xFFFF, -1):
        results = rounded(values.float(), torch.full((6,), all_bits))
        assert torch.equal(results.view(torch.int16), values.view(torch.int16))


def test_what_is_not_finite_stays_what_it_is() -> None:
    patterns = [0x7F800000, -0x800000, 0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1]  # inf, -inf, and four that are none
    values = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    for all_bits in (0, 0xFFFF):
        results = rounded(values, torch.full((6,), all_bits)).float()
        assert results[:2].tolist() == [math.inf, -math.inf]
        assert bool(results[2:].isnan().all())


# In the optimizer


def by_chance(parameter: nn.Parameter, offset: tuple[int, ...] = (0, 0)) -> Any:
    where = WherePart("weight", offset)
    return HalfMomentsAdamW([parameter], rounding=StochasticRounding(0, lambda: {parameter: where}), **SETTINGS)


def stepped(optimizer_of: Any, start: torch.Tensor, gradient: torch.Tensor, steps: int = 20) -> torch.Tensor:
    parameter = nn.Parameter(start.clone())
    optimizer = optimizer_of(parameter)
    for _ in range(steps):
        parameter.grad = gradient.to(parameter.dtype).clone()
        optimizer.step()
    return parameter.detach()


def test_every_element_goes_with_its_updates_and_not_with_bits_that_stay() -> None:
    """An update is 0.08 of the distance of two numbers. With the same bits in each, 92 of 100 elements never move."""
    start = torch.ones(64, 32, dtype=torch.bfloat16)
    result = stepped(by_chance, start, torch.full((64, 32), 0.01), steps=200)
    assert bool((result < start).all())


def test_what_rounding_to_nearest_loses_is_kept_in_the_mean() -> None:
    """An update of 3e-4 of a weight of 1, whose next number down is 0.0039 away: 20 of them are 0.006."""
    ones, gradient = torch.ones(64, 32, dtype=torch.bfloat16), torch.ones(64, 32)
    nearest = stepped(lambda parameter: HalfMomentsAdamW([parameter], **SETTINGS), ones, gradient)
    assert torch.equal(nearest, ones)
    lost = 1 - stepped(by_chance, ones, gradient).double()
    deviation = 2**-8 * math.sqrt(20 * 0.077 / lost.numel())
    assert abs(float(lost.mean()) - 20 * 3e-4) < 4 * deviation


@pytest.mark.parametrize("whole", [(64, 32), (64,)], ids=str)
def test_a_part_is_rounded_as_it_is_in_the_whole(whole: tuple[int, ...], monkeypatch: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(whole, generator=generator).bfloat16()
    gradient = torch.randn(whole, generator=generator)
    offset = tuple(size // 4 for size in whole)
    part = tuple(slice(at, 3 * at) for at in offset)
    stepped_whole = stepped(lambda parameter: by_chance(parameter, (0,) * len(whole)), start, gradient)
    monkeypatch.setattr(noise, "_BLOCK", 70)  # two rows and a part of one
    stepped_part = stepped(lambda parameter: by_chance(parameter, offset), start[part], gradient[part])
    assert torch.equal(stepped_part, stepped_whole[part])


def test_an_empty_part_is_stepped() -> None:
    empty = torch.empty(0, 32, dtype=torch.bfloat16)
    assert stepped(lambda parameter: by_chance(parameter, (64, 0)), empty, empty).shape == (0, 32)
