"""Weights as the optimizers of this rank step them, and where the parts of them lie over all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.engine.dtensor import local
from clusterbench.engine.memory import every_optimizer
from clusterbench.engine.rig import Rig
from clusterbench.training.built_step import BuiltStep


def stepped(step: BuiltStep) -> dict[str, tuple[Tensor, Mapping[str, Any]]]:
    """The weights that this rank's optimizers step, with their moments, by name."""
    states = {
        local(weight).data_ptr(): (weight, state)
        for optimizer in every_optimizer(step.optimizers)
        for weight, state in optimizer.state.items()
        if "exp_avg_sq" in state and local(weight).numel()
    }
    pointers = {name: part.value.data_ptr() for name, part in step.parts().items()}
    return {name: states[pointer] for name, pointer in pointers.items() if pointer in states}


def number_of(place: tuple[slice, ...]) -> int:
    """A positive number that a part of a weight shares with its copies alone."""
    return 1 + zlib.crc32(repr([(part.start, part.stop) for part in place]).encode())


def of_all_ranks(own: Tensor, rig: Rig) -> Tensor:
    """The same of every rank, by rank, on the host: shape (ranks, ...). A collective."""
    values = torch.zeros(rig.world_size, *own.shape, dtype=own.dtype, device=rig.device)
    values[rig.rank] = own.to(rig.device)
    dist.all_reduce(values)
    return values.cpu()
