"""Every weight of the model is held by ranks, whole, and as often as the layout says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.errors import WrongResult
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.parallel import Parallelism, part_of, split_over
from clusterbench.training.built_step import BuiltStep


def check_coverage(step: BuiltStep, active: Sequence[Parallelism], device: torch.device) -> None:
    """Counts on how many ranks each element of each weight is.

    A collective: every rank comes to the same verdict.

    Raises
    ------
    WrongResult
        Naming the first weight of which an element is on more or fewer ranks than the layout says. Such a weight would
        not be stepped, or not be clipped and compared.
    """
    job = step.job
    sizes = weight_shapes(job.on_one_rank())
    parts = step.parts()
    counted = torch.cat([_held(parts[name].place if name in parts else None, size) for name, size in sizes.items()])
    counted = counted.to(device)
    dist.all_reduce(counted)
    of_each = torch.split(counted.cpu(), [prod(size) for size in sizes.values()])
    for (name, copies), held in zip(copies_of(job, active), of_each, strict=True):
        least, most = int(held.min()), int(held.max())
        if (least, most) != (copies, copies):
            wrong = least if least != copies else most
            raise WrongResult(
                f"{job.layout} does not hold its weights as it says: an element of {name} is on {wrong} "
                f"{'rank' if wrong == 1 else 'ranks'} of {job.layout.world_size}; it should be on {copies}."
            )


def _held(place: tuple[slice, ...] | None, size: tuple[int, ...]) -> Tensor:
    """1 where this rank has an element, flat."""
    held = torch.zeros(size, dtype=torch.int32)
    if place is not None:
        held[place] = 1
    return held.flatten()


def copies_of(job: TrainingJob, active: Sequence[Parallelism]) -> Iterator[tuple[str, int]]:
    """Every weight of the whole model, and how many ranks have each element of it."""
    layout = job.layout
    ranks_of = {axis: ranks for parallelism in active for axis, ranks in parallelism.ranks_of.items()}
    uncut = job.uncut
    held = [weight_shapes(part_of(uncut, active, pp_rank)) for pp_rank in range(layout.pp)]
    for name in weight_shapes(job.on_one_rank()):
        on_stages = sum(name in weights for weights in held)
        split = prod(ranks_of.get(axis) or layout.degree(axis) for axis in split_over(active, name, job))
        yield name, on_stages * layout.world_size // layout.pp // split
