"""Every weight of the model is held by ranks, whole, and as often as the layout says."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.errors import WrongResult
from clusterbench.job import weight_shapes
from clusterbench.training.built_step import BuiltStep, Place, lying_at


def check_coverage(step: BuiltStep, copies_of: Mapping[str, int], device: torch.device) -> None:
    """Counts on how many ranks each element of each weight is.

    A collective: every rank comes to the same verdict.

    Parameters
    ----------
    copies_of
        On how many it should be, by weight.

    Raises
    ------
    WrongResult
        Naming the first weight of which an element is on more or fewer ranks than the layout says. Such a weight would
        not be stepped, or not be clipped and compared. Or one that the model does not have, on the ranks that hold it.
    """
    job = step.job
    sizes = weight_shapes(job.on_one_rank())
    parts = step.parts()
    counted = torch.cat([_held(parts[name].place if name in parts else None, size) for name, size in sizes.items()])
    others = sorted(parts.keys() - sizes.keys())
    counted = torch.cat([counted, counted.new_tensor([len(others)])]).to(device)
    dist.all_reduce(counted)
    if counted[-1]:
        what = "a weight that the model does not have" + (f": {others[0]}" if others else "")
        raise WrongResult(f"{job.layout} holds {what}. It would be stepped and clipped, and compared with nothing.")
    of_each = torch.split(counted[:-1].cpu(), [prod(size) for size in sizes.values()])
    for name, held in zip(sizes, of_each, strict=True):
        copies, least, most = copies_of[name], int(held.min()), int(held.max())
        if (least, most) != (copies, copies):
            wrong = least if least != copies else most
            raise WrongResult(
                f"{job.layout} does not hold its weights as it says: an element of {name} is on {wrong} "
                f"{'rank' if wrong == 1 else 'ranks'} of {job.layout.world_size}; it should be on {copies}."
            )


def _held(place: Place | None, size: tuple[int, ...]) -> Tensor:
    """1 where this rank has an element, flat."""
    held = torch.zeros(size, dtype=torch.int32)
    if place is not None:
        lying_at(place, held).fill_(1)
    return held.flatten()
