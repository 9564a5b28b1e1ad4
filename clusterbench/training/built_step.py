"""What a trainer builds: the training step of one rank, as proof, clock and passes see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from clusterbench.engine.compat import is_to_be_compiled
from clusterbench.engine.grid import Grid
from clusterbench.engine.rig import Rig
from clusterbench.job import TrainingJob


@dataclass(frozen=True)
class ObservedStep:
    """What one step showed on this rank.

    Attributes
    ----------
    loss
        Mean over the tokens of the global batch, the same on every rank.
    norm
        Of the gradients of the whole model before clipping; None where none is computed.
    gradients
        This rank's parts before clipping, which would hide a common factor; by the name of the weight.
    """

    loss: Tensor
    norm: Tensor | None
    gradients: Mapping[str, Tensor]


Place = tuple[slice, ...]
"""Where a part lies in a weight: a slice of each dimension; one slice alone is of the flattened weight."""


@dataclass(frozen=True)
class WeightPart:
    """This rank's part of one weight: its values, a plain tensor, and where it lies in the whole."""

    value: Tensor
    place: Place


def lying_at(place: Place, whole: Tensor) -> Tensor:
    """A view of what of a contiguous weight lies there.

    >>> import torch
    >>> lying_at((slice(1, 4),), torch.arange(6).view(2, 3)).tolist()
    [1, 2, 3]
    """
    return whole.view(-1)[place] if len(place) == 1 else whole[place]


class BuiltStep(Protocol):
    """The training step of one rank. Calling it runs one step.

    Attributes
    ----------
    job
        With the layers this rank has.
    grid
        The ranks of the layout; None for a job on one rank.
    micro_batches
        What the next call computes on: inputs and the tokens after them. Whoever calls may put others in their place.
    num_steps
        Optimizer steps so far.
    last_loss
        What the last call returned; None before the first.
    last_norm
        Of the gradients of the whole model in the last call, before clipping, on the device; None where none is
        computed.
    leaves_gradients
        Whether the gradients that the optimizer took are still those of the parameters behind a step.
    """

    job: TrainingJob
    grid: Grid | None
    micro_batches: list[tuple[Tensor, Tensor]]
    num_steps: int
    last_loss: Tensor | None
    last_norm: Tensor | None
    leaves_gradients: ClassVar[bool]

    @property
    def modules(self) -> Sequence[nn.Module]:
        """What holds this rank's parameters."""

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """What holds this rank's optimizer state."""

    def __call__(self) -> Tensor:
        """One step. Returns the mean loss over this rank's tokens, on the device; zero where a rank has no loss."""

    def observed(self) -> ObservedStep:
        """One step as the proof sees it. A collective."""

    def parts(self) -> Mapping[str, WeightPart]:
        """This rank's part of each weight by the weight's name in :func:`clusterbench.job.weight_shapes`."""

    def copies(self) -> Mapping[str, WeightPart]:
        """What this rank computes with where that is other memory than the parts, by the weight's name, flattened.

        Between steps it is what the parts of all ranks are, rounded: the whole weight, or a stretch with this rank's
        part. Copies that a module of ours makes for itself in each step are not among them.
        """

    def global_loss(self, loss: Tensor) -> Tensor:
        """The mean over the tokens of the global batch, from what a call returned. A collective."""

    def gradient_norm(self) -> Tensor:
        """Of the gradients of the whole model as they are now: after a call, of those that the optimizer took.

        A collective.
        """

    def own_passes(self, rig: Rig) -> Mapping[str, Callable[[], Any]]:
        """What only this trainer's step can show, by name; each is a collective."""


def is_compiled(step: BuiltStep) -> bool:
    """Whether any module of a step is to be compiled."""
    return any(is_to_be_compiled(part) for module in step.modules for part in module.modules())
