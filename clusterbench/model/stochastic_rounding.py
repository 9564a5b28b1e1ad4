"""Rounding by chance: a number becomes one of its two neighbours in bfloat16, the nearer one more often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from clusterbench.model.noise import blocks, noise

LOW_BITS = 0xFFFF
"""Of a float32: those that a bfloat16 does not have."""


def rounded(values: Tensor, bits: Tensor) -> Tensor:
    """float32 values in bfloat16, up or down so that the mean over all ``bits`` is the value itself.

    What is not finite stays what it is. A value beyond the largest bfloat16 may become infinite, as it does when it is
    rounded to nearest.

    Parameters
    ----------
    bits
        Integers of the same shape; their lowest 16 bits are random.

    Notes
    -----
    Random bits are added to those that will be cut off, and carry over as often as these are near the next number: of
    2**16 outcomes as many as the value of these. Zamirai et al. 2020, arXiv:2010.06192, show that weights in bfloat16
    train as ones in float32 where their updates are rounded so.
    """
    raised = values.view(torch.int32) + (bits & LOW_BITS).to(torch.int32)
    cut = (raised & ~LOW_BITS).view(torch.float32)
    return torch.where(values.isfinite(), cut, values).to(torch.bfloat16)


class WherePart(NamedTuple):
    """Which part of which weight a rank's tensor is: its first element in the whole."""

    name: str
    offset: Sequence[int]


@dataclass(frozen=True)
class StochasticRounding:
    """Random bits for each element of a weight: a function of seed, weight, place in the whole, and update alone.

    So copies of a weight are rounded alike and stay copies, parts of it are rounded as they would be in the whole, and
    every layout rounds as one rank does.

    Attributes
    ----------
    find_parts
        Where each parameter of an optimizer lies. Asked at the first update.
    """

    seed: int
    find_parts: Callable[[], Mapping[Tensor, WherePart]]

    @cached_property
    def _parts(self) -> Mapping[Tensor, WherePart]:
        return self.find_parts()

    def pieces(
        self, weight: Tensor, update: int, tensors: Sequence[Tensor]
    ) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
        """Random bits for a piece of a weight in an update, and that piece of each of ``tensors``, piece by piece."""
        name, offset = self._parts[weight]
        for rows, columns, pieces in blocks(tensors, offset):
            yield noise(self.seed, f"{name}, update {update}", rows, columns), pieces
