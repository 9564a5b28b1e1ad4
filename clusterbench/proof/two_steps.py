"""What two steps of a twin showed, and how far two of them are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from clusterbench.expected.tolerances import ONE_RANK
from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.proof.by_chance import squares_by_chance
from clusterbench.proof.copies import Copies
from clusterbench.training.built_step import BuiltStep, Place, WeightPart, lying_at


@dataclass(frozen=True)
class WeightSteps:
    """This rank's part of one weight: where it lies in the whole, its first gradient, and what two steps changed."""

    place: Place
    gradient: Tensor
    change: Tensor


@dataclass(frozen=True)
class TwoSteps:
    """What two steps showed on this rank, in float64.

    Attributes
    ----------
    losses
        Of both steps, over the global batch: shape (2,). The second is of weights that were stepped once.
    norms
        Of the gradients of the whole model, before clipping: shape (2,). Where a step computes none, of those that the
        optimizer took.
    weights
        By name.
    routing_margin
        The least difference of probability that decided where a token went; infinite where nothing did.
    stale
        How many copies of weights were not those of the weights that the second step began with.
    """

    losses: Tensor
    norms: Tensor
    weights: Mapping[str, WeightSteps]
    routing_margin: float = math.inf
    stale: int = 0


def two_steps(step: BuiltStep) -> TwoSteps:
    """Runs two steps. A collective."""
    before = {name: part.value.detach().clone() for name, part in step.parts().items()}
    first = step.observed()
    # where nothing is clipped the optimizer took the gradients as they were, and they are still there
    first_norm = step.gradient_norm() if first.norm is None else first.norm
    copies = Copies(step)
    second, stale = step.global_loss(step()), copies.num_stale()
    losses = torch.stack([first.loss.detach().double().reshape(()), second.detach().double().reshape(())])

    def widened(tensor: Tensor) -> Tensor:
        return tensor.detach().to(losses.device, torch.float64)  # offloaded weights are on the host

    last_norm = step.gradient_norm() if step.last_norm is None else step.last_norm
    norms = torch.stack([widened(norm).reshape(()) for norm in (first_norm, last_norm)])

    def stepped(name: str, part: WeightPart) -> WeightSteps:
        # of a weight that was not given any, it is nothing: all ranks find it wrong then, and name it
        gradient = first.gradients[name] if name in first.gradients else torch.zeros_like(part.value)
        return WeightSteps(part.place, widened(gradient), widened(part.value) - widened(before[name]))

    weights = {name: stepped(name, part) for name, part in step.parts().items()}
    return TwoSteps(losses, norms, weights, stale=stale)


class OneRank(TwoSteps):
    """The same of a job on one rank, which has every weight whole."""

    @classmethod
    def shared(cls, job: TrainingJob, run: Callable[[], TwoSteps], owner: int, device: torch.device) -> Self:
        """Runs two steps on the rank ``owner``, and gives what they showed to all. A collective.

        Parameters
        ----------
        job
            On one rank.
        """
        sizes = weight_shapes(job)
        numbers = 5 + 2 * sum(math.prod(size) for size in sizes.values())
        flat = torch.empty(numbers, dtype=torch.float64, device=device)
        if dist.get_rank() == owner:
            seen = run()
            parts = [
                part.flatten() for name in sizes for part in (seen.weights[name].gradient, seen.weights[name].change)
            ]
            margin = seen.losses.new_tensor([seen.routing_margin])
            torch.cat([seen.losses, seen.norms, margin, *parts], out=flat)
        dist.broadcast(flat, src=owner)
        return cls(flat[:2], flat[2:4], dict(_taken_apart(flat[5:], sizes)), float(flat[4]))


def _taken_apart(flat: Tensor, sizes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, WeightSteps]]:
    """Every weight of a flat tensor that has the gradient and the change of each in turn."""
    start = 0
    for name, size in sizes.items():
        numel = math.prod(size)
        gradient, change = (flat[at : at + numel].view(*size) for at in (start, start + numel))
        yield name, WeightSteps(tuple(slice(0, length) for length in size), gradient, change)
        start += 2 * numel


Deviations = dict[str, dict[str, float]]
"""Metric -> what was compared (a weight's name, :data:`ALL`, or which step) -> how far it is off."""

ALL = "all weights"
FIRST, SECOND = "first", "second"
IN_WORDS = {
    "parity_loss": "the loss of the {} step",
    "parity_gradients": "the gradient of {}",
    "parity_gradient_scale": "the scale of the gradient of {}",
    "parity_update": "what two steps changed of {}",
    "parity_worst_update": "what two steps changed of {}",
    "parity_second_norm": "the norm of the gradient of {} in the second step",
    ONE_RANK: "one rank, whose rounding it is allowed, is itself off: of {} it",
}
"""Metric -> what it compares of something of :data:`Deviations`."""


def deviations(
    seen: TwoSteps,
    reference: OneRank,
    updated: OneRank | None = None,
    spacing: Mapping[str, Tensor] | None = None,
) -> Deviations:
    """How far this rank's parts are from the same places of the reference.

    A gradient and a change are off by the root mean square of the difference on this rank's part over that of the whole
    weight; a gradient's scale by what is left of it when the difference is projected on the reference, so that
    rounding, which goes both ways, cancels. The scale of all gradients is their norm's, held against that of the
    reference's gradients and not against the norm it computed, which comes about in the same way. The second norm tells
    whether gradients of the first step were still there.

    Parameters
    ----------
    updated
        Whose changes are the right ones, and loss and norm after the first, if not the reference's. A change is off by
        a share of the reference's all the same.
    spacing
        Of each element of each weight the distance to the next number, where updated weights are rounded by chance. A
        change is then off by a share of what such a rounding leaves of the reference's.
    """
    updated = updated or reference
    right = float(reference.losses[0]), float(updated.losses[1])
    losses = zip((FIRST, SECOND), seen.losses.tolist(), right, strict=True)
    gradients, changes = dict[str, float](), dict[str, float]()
    scales = {ALL: _off(float(seen.norms[0]), _norm(reference))}
    squared, of_reference = 0.0, 0.0
    for name, whole in reference.weights.items():  # in one order on all ranks, whatever they hold of it
        part = seen.weights.get(name)
        gradient, scale, change = 0.0, 0.0, 0.0
        if part is not None and part.gradient.numel():
            gradient, scale = _gradient_off(part.gradient, whole.gradient, part.place)
            wanted = lying_at(part.place, updated.weights[name].change)
            square, size = _squares(part.change, wanted, whole.change, part.place)
            if spacing is not None:
                size = squares_by_chance(whole.change, spacing[name], part.change.numel())
            change = _ratio(square, size)
            squared, of_reference = squared + square, of_reference + size
        gradients[name], scales[name], changes[name] = gradient, scale, change
    return {
        "parity_loss": {which: _off(got, wanted) for which, got, wanted in losses},
        "parity_gradients": gradients,
        "parity_gradient_scale": scales,
        "parity_update": {ALL: _ratio(squared, of_reference)},
        "parity_worst_update": changes,
        "parity_second_norm": {ALL: _off(float(seen.norms[1]), float(updated.norms[1]))},
    }


def _norm(reference: OneRank) -> float:
    return math.sqrt(sum(float(weight.gradient.square().sum()) for weight in reference.weights.values()))


def _off(got: float, wanted: float) -> float:
    """The relative distance of two numbers; infinite where one is none."""
    distance = abs(got - wanted)
    if math.isnan(distance):
        return math.inf
    return distance / abs(wanted) if wanted else (math.inf if distance else 0.0)


def _squares(got: Tensor, wanted: Tensor, whole: Tensor, place: Place) -> tuple[float, float]:
    """The squares of a difference, and of the reference: of this part of it, or as if it were like the whole.

    Whichever is more: the part of an expert with many tokens is larger than others, and so is its rounding.
    """
    if got.shape != wanted.shape:
        return math.inf, 0.0
    square = float((got - wanted).square().sum())
    of_reference = max(float(whole.square().mean()) * got.numel(), float(lying_at(place, whole).square().sum()))
    return math.inf if math.isnan(square) else square, of_reference


def _ratio(squared: float, of_reference: float) -> float:
    return math.sqrt(squared / of_reference) if of_reference else (math.inf if squared else 0.0)


_ENOUGH = 0.1
"""Of the whole's root mean square, in a part whose scale is looked at: rows of tokens that do not occur have none."""


def _gradient_off(got: Tensor, whole: Tensor, place: Place) -> tuple[float, float]:
    wanted = lying_at(place, whole)
    squared, of_part = _squares(got, wanted, whole, place)
    own = float(wanted.square().sum()) if math.isfinite(squared) else 0.0
    if own <= _ENOUGH**2 * of_part:
        return _ratio(squared, of_part), 0.0
    # of a part that is small beside the whole, rounding is a larger share
    scale = abs(float((got * wanted).sum()) / own - 1) * math.sqrt(own / of_part)
    return _ratio(squared, of_part), scale


def over_all_ranks(found: Deviations, device: torch.device) -> Deviations:
    """The largest of each deviation over all ranks, so that all of them come to the same verdict. A collective."""
    of_each = [value for group in found.values() for value in group.values()]
    values = torch.tensor(of_each, dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    largest = iter(values.tolist())
    return {metric: {name: next(largest) for name in group} for metric, group in found.items()}
