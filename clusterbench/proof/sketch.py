"""Gradients of a job of any size as a few numbers, from which the distance of two of them can be told.

A norm is the same of gradients that are none of each other's: of layers in another order, of tokens beside the labels
of others. The projections of a gradient on a few vectors of random signs are not: of two gradients they are apart, by
their root mean square, as far as the gradients are.

Source: Alon, Matias and Szegedy 1996, "The space complexity of approximating the frequency moments", doi
10.1145/237814.237823; Johnson and Lindenstrauss 1984.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.engine.dtensor import local
from clusterbench.engine.rig import Rig
from clusterbench.job import BETAS, weight_shapes
from clusterbench.job.passes import FIRST, PROJECTIONS, projection
from clusterbench.proof.stepped import number_of, of_all_ranks, stepped
from clusterbench.training.built_step import BuiltStep, Place

_MOST_ELEMENTS = 2**22
"""That are widened at a time."""


class Sketch:
    """Of the clipped gradients that the first update was made with, from the optimizer's means behind it.

    Behind the ``LAST`` update, of what is left of all of them in these means: of 10 gradients the last has a sixth. It
    is taken without waiting for the device.
    """

    def __init__(self, step: BuiltStep, of: str = FIRST) -> None:
        self._of = of
        sizes, parts = weight_shapes(step.job.on_one_rank()), step.parts()
        self._names = [*sizes]
        self._own = {
            name: (
                number_of(parts[name].place),
                _projected(name, local(weight.moment("exp_avg")), parts[name].place, sizes[name]),
            )
            for name, weight in stepped(step).items()
        }

    def numbers(self, rig: Rig | None = None) -> dict[str, float]:
        """By kind of weight its gradient's norm and projections, each part of a weight once, whoever has it.

        A collective of all ranks of ``rig``; without it this is all there is. Empty where no optimizer keeps means.
        """
        counted, kinds = self._own, [*dict.fromkeys(map(_kind, self._names))]
        if rig is not None:
            counted = {name: self._own[name] for name in self._first_holds(rig)}
        sums = torch.zeros(len(kinds), 1 + PROJECTIONS, dtype=torch.float64)
        for name, (_, numbers) in counted.items():
            sums[kinds.index(_kind(name))] += numbers.cpu()
        if rig is not None:
            sums = sums.to(rig.device)
            dist.all_reduce(sums)
        if not sums.any():
            return {}
        sums[:, 0].sqrt_()
        return dict(_named(zip(kinds, sums.tolist(), strict=True), self._of))

    def _first_holds(self, rig: Rig) -> Iterator[str]:
        """Names of weights whose part on this rank no rank before it has. A collective."""
        own = torch.zeros(len(self._names), dtype=torch.float64)
        for index, name in enumerate(self._names):
            if name in self._own:
                own[index] = self._own[name][0]
        of_ranks = of_all_ranks(own, rig)
        for index, name in enumerate(self._names):
            if name in self._own and not (of_ranks[: rig.rank, index] == own[index]).any():
                yield name


def _kind(name: str) -> str:
    """What weights of all layers have in common.

    >>> _kind("layers.11.attention.key.weight"), _kind("feed_forward.experts.up")
    ('attention.key', 'feed_forward.experts.up')
    """
    return re.sub(r"^layers\.\d+\.", "", name).removesuffix(".weight")


def _named(of_kinds: Iterable[tuple[str, list[float]]], of: str) -> Iterator[tuple[str, float]]:
    for kind, numbers in of_kinds:
        for index, number in enumerate(numbers):
            yield projection(kind, index, of), float(f"{number:.6g}")


def _projected(name: str, mean: Tensor, place: Place, size: Sequence[int]) -> Tensor:
    """The square of the norm of this part of a gradient, and its projections: shape (1 + PROJECTIONS,)."""
    mean, place = _in_rows(mean, place, size)
    wide = torch.promote_types(mean.dtype, torch.float32)
    along = [_signs(f"{name} {dim}", length)[part] for dim, (length, part) in enumerate(zip(size, place, strict=True))]
    of_rows = along[0].to(mean.device, wide)
    of_columns = along[1].to(mean.device, wide) if len(along) > 1 else of_rows.new_ones(1, PROJECTIONS)
    found = torch.zeros(1 + PROJECTIONS, dtype=torch.float64, device=mean.device)
    rows = mean.reshape(len(of_rows), -1)
    most = max(1, _MOST_ELEMENTS // rows.shape[1])
    for block, its_rows in zip(torch.split(rows, most), torch.split(of_rows, most), strict=True):
        gradient = block.to(wide) / (1 - BETAS[0])
        found[0] += gradient.square().sum(dtype=torch.float64)
        found[1:] += (its_rows * (gradient @ of_columns)).sum(0, dtype=torch.float64)
    return found


def _in_rows(mean: Tensor, place: Place, size: Sequence[int]) -> tuple[Tensor, Place]:
    """A stretch of a weight of several dimensions as whole rows, with zeros around it; any other part as it is.

    >>> rows, place = _in_rows(torch.tensor([1.0, 2.0]), (slice(2, 4),), (4, 3))
    >>> rows.tolist(), place[0]
    ([[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]], slice(0, 2, None))
    """
    if len(place) == len(size):
        return mean, place
    (stretch,), of_row = place, prod(size[1:])
    rows = slice(stretch.start // of_row, -(-stretch.stop // of_row))
    wide = mean.new_zeros((rows.stop - rows.start) * of_row)
    wide[stretch.start - rows.start * of_row :][: len(mean)] = mean
    return wide.view(-1, *size[1:]), (rows, *(slice(0, length) for length in size[1:]))


def _signs(seed: str, length: int) -> Tensor:
    """The same on every rank: shape (length, PROJECTIONS)."""
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    return 2 * torch.randint(2, (length, PROJECTIONS), dtype=torch.int8, generator=generator) - 1
