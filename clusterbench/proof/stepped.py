"""Weights as the optimizers of this rank step them, and where the parts of them lie over all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.engine.dtensor import local
from clusterbench.engine.memory import every_optimizer
from clusterbench.engine.rig import Rig
from clusterbench.training.built_step import BuiltStep, Place


@dataclass(frozen=True)
class SteppedWeight:
    """This rank's part of a weight as an optimizer steps it: alone, or as a stretch of a tensor that has several.

    Attributes
    ----------
    owner
        What the optimizer steps.
    stretch
        Which elements of ``owner``, flattened, are of this weight; None where all are.
    state
        What the optimizer keeps of ``owner``.
    """

    owner: Tensor
    stretch: slice | None
    state: Mapping[str, Any]

    def of(self, tensor: Tensor) -> Tensor:
        """What of a tensor like ``owner`` is of this weight, in the same memory."""
        return tensor if self.stretch is None else tensor.view(-1)[self.stretch]

    @property
    def value(self) -> Tensor:
        return self.of(self.owner.detach())

    @property
    def gradient(self) -> Tensor | None:
        """What the optimizer took, as long as it is there."""
        return None if self.owner.grad is None else self.of(self.owner.grad)

    def moment(self, name: str) -> Tensor:
        """``exp_avg`` or ``exp_avg_sq``."""
        return self.of(self.state[name])


def stepped(step: BuiltStep) -> dict[str, SteppedWeight]:
    """The weights that this rank's optimizers step, by name."""
    owners = [
        (owner, state)
        for optimizer in every_optimizer(step.optimizers)
        for owner, state in optimizer.state.items()
        if "exp_avg_sq" in state and local(owner).numel()
    ]
    alone = {local(owner).data_ptr(): (owner, state) for owner, state in owners}
    return dict(_found(step, alone))


def _found(
    step: BuiltStep, owners: Mapping[int, tuple[Tensor, Mapping[str, Any]]]
) -> Iterator[tuple[str, SteppedWeight]]:
    for name, part in step.parts().items():
        for at, (owner, state) in _around(part.value, owners):
            numel = part.value.numel()
            stretch = None if numel == local(owner).numel() else slice(at, at + numel)
            yield name, SteppedWeight(owner, stretch, state)


def _around(
    value: Tensor, owners: Mapping[int, tuple[Tensor, Mapping[str, Any]]]
) -> Iterator[tuple[int, tuple[Tensor, Mapping[str, Any]]]]:
    """The owner in whose memory a part lies, if there is one, and behind how many of its elements."""
    if value.data_ptr() in owners:
        yield 0, owners[value.data_ptr()]
        return
    for start, (owner, state) in owners.items():
        at, odd = divmod(value.data_ptr() - start, value.element_size())
        if value.numel() and not odd and 0 < at <= local(owner).numel() - value.numel():
            yield at, (owner, state)
            return


def number_of(place: Place) -> int:
    """A positive number that a part of a weight shares with its copies alone."""
    return 1 + zlib.crc32(repr([(part.start, part.stop) for part in place]).encode())


def of_all_ranks(own: Tensor, rig: Rig) -> Tensor:
    """The same of every rank, by rank, on the host: shape (ranks, ...). A collective."""
    values = torch.zeros(rig.world_size, *own.shape, dtype=own.dtype, device=rig.device)
    values[rig.rank] = own.to(rig.device)
    dist.all_reduce(values)
    return values.cpu()
