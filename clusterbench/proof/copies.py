"""Copies of weights in the dtype of the arithmetic: whether a step computed with the weights that it began with.

Such copies of ours are there in bfloat16 alone, so that nothing in float64 shows one that is out of date; and what a
step with old norms or routers comes to is within what bfloat16 leaves. Ours are made when a step begins; those that
another trainer has between steps were made when one ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import torch
from torch import Tensor

from clusterbench.engine.dtensor import local
from clusterbench.errors import WrongResult
from clusterbench.job import TrainingJob
from clusterbench.model.rounded import masters_and_copies
from clusterbench.training.built_step import BuiltStep
from clusterbench.words import plural

SAMPLES = 4096
"""Elements of each weight, evenly spread, that are compared."""


class Copies:
    """Of a step that is about to run: what its copies have to be in it."""

    def __init__(self, step: BuiltStep) -> None:
        pairs = [pair for module in step.modules for pair in masters_and_copies(module)]
        self._due = [(copy, sampled(master).to(copy.device, copy.dtype, copy=True)) for master, copy in pairs]
        self._stale_before = sum(
            not torch.equal(sampled(copy), sampled(part).to(copy.dtype)) for part, copy in _parts_and_copies(step)
        )

    def num_stale(self) -> int:
        """Behind it: how many are others."""
        return self._stale_before + sum(not torch.equal(sampled(copy), due) for copy, due in self._due)


def _parts_and_copies(step: BuiltStep) -> Iterator[tuple[Tensor, Tensor]]:
    """Each part of this rank, and what is computed with in its place, of a step that has copies between steps."""
    parts = step.parts()
    for name, copy in step.copies().items():
        if name in parts:
            part = parts[name]
            yield part.value, copy.value[part.place[0].start - copy.place[0].start :][: part.value.numel()]


def sampled(tensor: Tensor) -> Tensor:
    """Some elements of this rank's part of a tensor, evenly spread: at most :data:`SAMPLES`."""
    flat = local(tensor).detach().flatten()
    return flat[:: _stride(flat.numel())]


def samples_to_the_column(tensor: Tensor) -> int:
    """How many samples further the same column comes again; 0 of what has no columns.

    >>> samples_to_the_column(torch.empty(128, 64)), samples_to_the_column(torch.empty(128))
    (32, 0)
    """
    size = local(tensor).shape
    return size[-1] // gcd(size[-1], _stride(size.numel())) if len(size) > 1 else 0


def _stride(numel: int) -> int:
    return max(1, -(-numel // SAMPLES))


def check_copies(num_stale: float, job: TrainingJob) -> None:
    """Raises :class:`WrongResult` where a rank has stale copies, at most so many."""
    if num_stale:
        raise WrongResult(
            f"{job.layout} computes with {plural(int(num_stale), 'copy', 'copies')} of weights in {job.dtype} that "
            "are not those of the weights that the step began with."
        )
