"""Weights that are rounded by chance: how far such a rounding goes, and whether it leans to one side."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.model.assembly import master_dtype
from clusterbench.model.noise import fill_weight

FEW = 8
"""Elements that may be rounded the other way on any part of a weight, whatever its size."""

MOST_CHANGED = 2**8
"""Distances of two numbers by which an update may change an element whose rounding says something."""


def spacing_of(values: Tensor, eps: float) -> Tensor:
    """Of each value how far it is to the next larger number of a dtype with this ``eps``.

    >>> spacing_of(torch.tensor([1.0, 1.5, 0.75, -4.0]), eps=0.5).tolist()
    [0.5, 0.5, 0.25, 2.0]
    """
    _, exponent = torch.frexp(values)
    return torch.ldexp(torch.full_like(values, eps / 2), exponent)


def spacing_of_weights(job: TrainingJob, device: torch.device) -> dict[str, Tensor]:
    """The same of each whole weight of a job on one rank before its first step, by name."""
    spacing = dict[str, Tensor]()
    for name, size in weight_shapes(job).items():
        weight = torch.empty(size, dtype=master_dtype(job), device=device)
        fill_weight(weight, job.seed, name, [0] * len(size), size)
        spacing[name] = spacing_of(weight.double(), torch.finfo(weight.dtype).eps)
    return spacing


def squares_by_chance(change: Tensor, spacing: Tensor, numel: int) -> float:
    """The squares that a change of a weight has when it was rounded by chance, on a part of ``numel`` elements.

    A change that is less than the distance to the next number becomes that distance, as often as it is a share of it.
    """
    size = change.abs()
    return float((size * size.maximum(spacing)).mean()) * numel + FEW * float(spacing.square().mean())


def bias_of(updates: Iterable[tuple[Tensor, Tensor, Tensor, float]]) -> float:
    """How far roundings are from what chance would make of them, in standard deviations.

    The largest of four: how far all went up, how far away from zero, how far with the update, and how large they are.
    The third is what a step does that is too small or in a wrong direction, and the last two what rounding to nearest
    does: it loses small updates, and is nearer.

    Parameters
    ----------
    updates
        Of each weight: its elements before, what the update should make of them, what it made, each (samples,) in
        float64; and the ``eps`` of the dtype in which they are kept.

    Notes
    -----
    A number that is a share ``p`` of the way to the next one goes there with probability ``p``: in distances of two
    numbers the error has the mean 0 and the variance ``p (1 - p)``, and its square has the variance
    ``p (1 - p) (1 - 2 p)**2``.
    """
    sums, variances = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for before, expected, after, eps in updates:
        # What an update leaves near zero is a difference of larger numbers, whose own rounding is beyond the spacing.
        telling = (expected - before).abs() <= MOST_CHANGED * spacing_of(expected, eps)
        before, expected, after = before[telling], expected[telling], after[telling]
        spacing = spacing_of(expected, eps)
        off, share = (after - expected) / spacing, (expected / spacing).frac().abs()
        variance = share * (1 - share)
        of_square = variance * (1 - 2 * share).square()
        errors = off, off * expected.sign(), off * (expected - before).sign(), off.square() - variance
        sums += torch.stack([error.sum() for error in errors])
        variances += torch.stack([each.sum() for each in (variance, variance, variance, of_square)])
    both = zip(sums.abs().tolist(), variances.tolist(), strict=True)
    return max(off / math.sqrt(variance) if variance else math.inf if off else 0.0 for off, variance in both)
