"""Layouts that tests draw from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from clusterbench.errors import LayoutError
from clusterbench.layout import ParallelLayout


def layouts_on(world_size: int) -> Iterator[ParallelLayout]:
    """Every one on so many ranks, riders and stages of ZeRO included, whatever a parallelism objects to."""
    degrees = [degree for degree in range(1, world_size + 1) if world_size % degree == 0]
    for pp, dp, cp, tp in product(degrees, repeat=4):
        if pp * dp * cp * tp == world_size:
            for sp, ep, zero in product((False, True), degrees, range(4)):
                try:
                    yield ParallelLayout(pp=pp, dp=dp, cp=cp, tp=tp, sp=sp, ep=ep, zero=zero)
                except LayoutError:
                    continue
