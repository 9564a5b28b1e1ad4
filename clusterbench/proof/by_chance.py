"""Weights that are rounded by chance: how far such a rounding goes, and whether it leans to one side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

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


class Updated(NamedTuple):
    """One update of some elements of a weight, evenly spread: each (samples,) in float64.

    Attributes
    ----------
    before, expected, after
        The elements, what the update should make of them, and what it made.
    eps
        Of the dtype in which they are kept.
    below
        How many samples further the element of the same column in another row is; 0 where there is none.
    """

    before: Tensor
    expected: Tensor
    after: Tensor
    eps: float
    below: int = 0


class _Errors(NamedTuple):
    """By how much rounding made each sample larger, in distances of two numbers, and its variance.

    Larger away from zero, as random bits are added to that: of two numbers of other signs they do the same. All 0 where
    a sample says nothing.
    """

    off: Tensor
    variance: Tensor
    of_square: Tensor

    @classmethod
    def of(cls, update: Updated) -> Self:
        # What an update leaves near zero is a difference of larger numbers, whose own rounding is beyond the spacing.
        spacing = spacing_of(update.expected, update.eps)
        telling = ((update.expected - update.before).abs() <= MOST_CHANGED * spacing).double()
        share = (update.expected / spacing).frac().abs()
        variance = share * (1 - share) * telling
        off = (update.after - update.expected) / spacing * update.expected.sign() * telling
        return cls(off, variance, variance * (1 - 2 * share).square())


def bias_of(updates: Sequence[Updated], later: Sequence[Updated] = ()) -> float:
    """How far roundings are from what chance would make of them, in standard deviations.

    The largest of eight. How far all went up, how far away from zero, how far with the update, and how large they are:
    the third is what a step does that is too small or in a wrong direction, and the last two what rounding to nearest
    does: it loses small updates, and is nearer. And how far neighbours in a row went the same way, those in a column,
    those at the same place of two weights, and those of the same element in two updates: where these have the same
    random bits no sum over one update leans, and an element whose bits stay goes one way for good.

    Parameters
    ----------
    updates
        Of each weight.
    later
        The update of each that followed.

    Notes
    -----
    A number that is a share ``p`` of the way to the next one goes there with probability ``p``: in distances of two
    numbers the error has the mean 0 and the variance ``p (1 - p)``, and its square has the variance
    ``p (1 - p) (1 - 2 p)**2``. A product of two independent errors has the mean 0 and the product of their variances.
    """
    errors = [_Errors.of(update) for update in updates]
    sums, variances = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for update, (off, variance, of_square) in zip(updates, errors, strict=True):
        up, way = update.expected.sign(), (update.expected - update.before).sign()
        kinds = off * up, off, off * up * way, off.square() - variance
        sums += torch.stack([each.sum() for each in kinds])
        variances += torch.stack([each.sum() for each in (variance, variance, variance, of_square)])
    both = zip(sums.abs().tolist(), variances.tolist(), strict=True)
    leaning = max(off / math.sqrt(variance) if variance else math.inf if off else 0.0 for off, variance in both)
    return max(leaning, *map(_together, _pairs(updates, errors, [_Errors.of(update) for update in later])))


_Pairs = list[tuple[Tensor, Tensor, Tensor, Tensor]]


def _pairs(updates: Sequence[Updated], errors: Sequence[_Errors], later: Sequence[_Errors]) -> Iterator[_Pairs]:
    """Errors that have nothing to do with each other, and their variances: four kinds."""
    yield [_shifted(each, 1) for each in errors]
    yield [_shifted(each, update.below) for update, each in zip(updates, errors, strict=True) if update.below]
    alike = defaultdict[tuple[int, int], list[_Errors]](list)
    for update, each in zip(updates, errors, strict=True):
        alike[len(each.off), update.below].append(each)
    yield [_beside(*two) for weights in alike.values() for two in pairwise(weights)]
    yield [_beside(*two) for two in zip(errors, later, strict=False)]


def _shifted(errors: _Errors, by: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return errors.off[:-by], errors.off[by:], errors.variance[:-by], errors.variance[by:]


def _beside(one: _Errors, other: _Errors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return one.off, other.off, one.variance, other.variance


def _together(pairs: _Pairs) -> float:
    """How far products of errors are from cancelling: in standard deviations, or where those are few, in products."""
    total = sum(float((one * other).sum()) for one, other, _, _ in pairs)
    variance = sum(float((of_one * of_other).sum()) for _, _, of_one, of_other in pairs)
    return abs(total) / math.sqrt(max(variance, 1.0))
