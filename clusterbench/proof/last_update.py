"""The optimizer of the job itself: what it took, what it did with it, and that copies of a weight stay copies.

The twin's two steps show what an optimizer does at first. This looks at the weights that were timed, after as many
updates as there were. What is looked at follows from this rank's own tensors, so it needs no reference and little
memory, at any size of the job.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from clusterbench.engine.dtensor import local
from clusterbench.engine.memory import every_optimizer
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.expected.tolerances import BIAS, CLIPPING, COPIES, LAST_UPDATE, allowed_after_timing
from clusterbench.job import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, weight_shapes
from clusterbench.parallel import Parallelism
from clusterbench.proof.by_chance import Updated, bias_of
from clusterbench.proof.copies import Copies, check_copies, sampled, samples_to_the_column
from clusterbench.proof.stepped import SteppedWeight, number_of, of_all_ranks, stepped
from clusterbench.proof.two_steps import over_all_ranks
from clusterbench.training.built_step import BuiltStep

CLIP_EPSILON = 1e-6
"""Which torch adds to the norm it divides by."""

STRETCHES, LEAST_STRETCH = 512, 512
"""Of a weight, of which the sums of its copies are compared one by one, and elements of one.

Adam's first update is the sign of a gradient, so that a last bit may turn one near 0: of so many elements one such is
2 / 512^0.5 = 0.09 updates.
"""


def check_last_update(
    step: BuiltStep, rig: Rig, active: Sequence[Parallelism] = (), steps_again: bool = True
) -> dict[str, float]:
    """Looks at the gradients and weights that the timed steps left, and may run one step more.

    A collective: every rank gets the same answer.

    Parameters
    ----------
    active
        What the step was to be built with.
    steps_again
        Whether there is one step more; without it there are ``clipping`` and ``copies`` alone, and of a step that
        leaves no gradients ``copies``.

    Returns
    -------
    By the keys of :func:`~clusterbench.expected.tolerances.allowed_after_timing`; an optimizer that is not AdamW has no
    ``last_update``.

    Raises
    ------
    WrongResult
        On every rank, naming the weight and the rank where there is one.
    """
    limits = {name: limit.value for name, limit in allowed_after_timing(step.job, active).items()}
    found, names = dict[str, float](), [*weight_shapes(step.job.on_one_rank())]
    if step.leaves_gradients:
        found |= _clipping(step, _norms_left(step), names, rig)
    found[COPIES], of_copies = _apart(step, names, rig)
    where, num_updates = {CLIPPING: "the gradients", COPIES: of_copies}, step.num_steps

    def expect_within_limits() -> None:
        for metric, value in found.items():
            if not value <= limits[metric]:
                what = _IN_WORDS[metric].format(where[metric], value, limits[metric])
                raise WrongResult(f"{step.job.layout}, after {num_updates} updates: {what}.", found)

    expect_within_limits()  # of what these say one step more would show what follows from it
    if steps_again:
        where |= {LAST_UPDATE: _step_again(step, rig, active, names, found), BIAS: "all weights"}
        expect_within_limits()
    return found


def _step_again(
    step: BuiltStep, rig: Rig, active: Sequence[Parallelism], names: list[str], found: dict[str, float]
) -> str:
    """One step more: adds what it shows to ``found``, and returns where the worst update was. A collective."""
    updates, norms = _watched(step, rig)
    if not step.leaves_gradients:
        found |= _clipping(step, norms, names, rig)
    off_formula, of_update = _worst(_off_formula(updates), names, rig)
    if off_formula is not None:
        found[LAST_UPDATE] = off_formula
    if any(parallelism.rounds_by_chance for parallelism in active):
        # one more: bits that are the same in each update show in two of them alone
        bias = bias_of(_roundings_of(updates), _roundings_of(_watched(step, rig)[0]))
        found[BIAS] = over_all_ranks({BIAS: {"": bias}}, rig.device)[BIAS][""]
    return of_update


def _watched(step: BuiltStep, rig: Rig) -> tuple[list[_Update], dict[str, float]]:
    """Runs a step, and returns what it made of each weight, and the norms of gradients it took. A collective."""
    weights, copies = stepped(step), Copies(step)
    before = {name: _state_of(weight) for name, weight in weights.items()}
    num_updates = step.num_steps
    _spoil_gradients(step)
    samples, norms = dict[str, Tensor](), dict[str, float]()
    with _watched_optimizers(step, weights, samples, norms):
        step()
    own = {"stale": float(copies.num_stale()), "spoilt": float(_has_spoilt_gradients(step))}
    seen = over_all_ranks({"": own}, rig.device)[""]
    check_copies(seen["stale"], step.job)
    if seen["spoilt"]:
        raise WrongResult(
            f"{step.job.layout}, after {num_updates} updates: gradients of the step before are still there when the "
            "next begins, and are added to its own."
        )
    return _updates(step, before, samples), norms


@contextmanager
def _watched_optimizers(
    step: BuiltStep, weights: Mapping[str, SteppedWeight], samples: dict[str, Tensor], norms: dict[str, float]
) -> Iterator[None]:
    """Adds what optimizers are given of gradients meanwhile: not every trainer's are there behind a step."""

    def take(optimizer: Optimizer, *_: Any) -> None:
        of_this = {id(owner) for group in optimizer.param_groups for owner in group["params"]}
        for name, weight in weights.items():
            if id(weight.owner) in of_this and weight.gradient is not None:
                samples[name], norms[name] = _sampled(weight.gradient), _norm_of(weight.gradient)

    hooks = [optimizer.register_step_pre_hook(take) for optimizer in every_optimizer(step.optimizers)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _spoil_gradients(step: BuiltStep) -> None:
    """Makes NaN of what is there of gradients between steps: nothing of a step that begins without them depends on it.

    In bfloat16 a few of them that are added to the next ones leave loss and norm as they may be.
    """
    for gradient in _gradients(step):
        gradient.fill_(math.nan)


def _has_spoilt_gradients(step: BuiltStep) -> bool:
    return any(math.isnan(gradient.sum(dtype=torch.float32)) for gradient in _gradients(step))


def _gradients(step: BuiltStep) -> Iterator[Tensor]:
    """Of all that has one, as a plain tensor."""
    parameters = (parameter for module in step.modules for parameter in module.parameters())
    yield from (local(parameter.grad) for parameter in parameters if parameter.grad is not None)


def _roundings_of(updates: Iterable[_Update]) -> list[Updated]:
    return [
        Updated(seen.before.weight, seen.expected.weight, seen.after.weight, seen.after.rounding, seen.below)
        for seen in updates
        if seen.expected is not None
    ]


_IN_WORDS = {
    CLIPPING: "the norm of {} that the optimizer took is not that of clipped ones: off by {:.3g}; allowed is {:g}",
    COPIES: "copies of {} are {:.3g} updates apart; allowed is {:g}",
    LAST_UPDATE: "what an update made of {} is {:.3g} roundings from AdamW's formula; allowed is {:g}",
    BIAS: (
        "updates of {} are not rounded up and down by chance, each by bits of its own: a sum is off by {:.3g} standard "
        "deviations; allowed is {:g}"
    ),
}


def _off_clipped(norm: float, most: float, before: float) -> float:
    wanted = before * min(1.0, most / (before + CLIP_EPSILON))
    return abs(norm / wanted - 1) if wanted else 0.0


def _clipping(step: BuiltStep, norms: Mapping[str, float], names: list[str], rig: Rig) -> dict[str, float]:
    """How far the norm that the optimizer took is from the clipped one; empty where nothing is clipped.

    Apart from how the step itself comes to its norm: each part of a weight once, whoever has it. A collective.

    Parameters
    ----------
    norms
        Of this rank's parts of gradients, by weight.
    """
    most, before = step.job.max_grad_norm, step.last_norm
    if most is None or before is None:
        return {}
    parts, own = step.parts(), torch.zeros(len(names), 2, dtype=torch.float64)
    for name, norm in norms.items():
        own[names.index(name)] = torch.tensor([number_of(parts[name].place), norm**2])
    squares = (dict(of_weight) for of_weight in of_all_ranks(own, rig).transpose(0, 1).tolist())
    norm = math.sqrt(sum(square for of_weight in squares for place, square in of_weight.items() if place))
    off = _off_clipped(norm, most, float(before))
    return {CLIPPING: over_all_ranks({CLIPPING: {"": off}}, rig.device)[CLIPPING][""]}


def _norms_left(step: BuiltStep) -> dict[str, float]:
    """Of this rank's parts of the gradients that the optimizer took, where they are still there."""
    parameters = [parameter for module in step.modules for parameter in module.parameters()]
    gradients = {local(each).data_ptr(): local(each.grad) for each in parameters if each.grad is not None}
    left = {name: gradients.get(part.value.data_ptr()) for name, part in step.parts().items()}
    return {name: _norm_of(gradient) for name, gradient in left.items() if gradient is not None and gradient.numel()}


def _norm_of(gradient: Tensor) -> float:
    return float(local(gradient).double().square().sum().sqrt())


# Copies


def _apart(step: BuiltStep, names: list[str], rig: Rig) -> tuple[float, str]:
    """How far the sums of two copies of the same part of a weight differ, stretch by stretch, in updates, and where.

    One update changes each element by about the learning rate, in either direction, so the sum over n elements by its
    n-th root. A few elements that differ are seen in a stretch of few.
    """
    parts, most_stretches = {**step.parts(), **step.copies()}, _stretches(len(names), rig.world_size)
    own = torch.zeros(len(names), 2 + most_stretches, dtype=torch.float64)
    for index, name in enumerate(names):
        if name in parts and (numel := parts[name].value.numel()):
            sums = _sums_of_stretches(parts[name].value, most_stretches)
            own[index, 0], own[index, 1] = number_of(parts[name].place), numel
            own[index, 2 : 2 + len(sums)] = sums.cpu()
    found = [(0.0, "")]
    for name, of_ranks in zip(names, of_all_ranks(own, rig).transpose(0, 1), strict=True):
        ranks_of: dict[float, list[int]] = defaultdict(list)
        for rank, place in enumerate(of_ranks[:, 0].tolist()):
            if place:
                ranks_of[place].append(rank)
        for ranks in ranks_of.values():
            sums = of_ranks[ranks, 2:]
            apart_of = sums.amax(0) - sums.amin(0)
            stretch = int(apart_of.argmax())
            numel = _stretch_of(int(of_ranks[ranks[0], 1]), most_stretches)
            apart = float(apart_of[stretch]) / (LEARNING_RATE * numel**0.5)
            least, most = (ranks[int(rank)] for rank in (sums[:, stretch].argmin(), sums[:, stretch].argmax()))
            found.append((apart, f"{name} on rank {least} and on rank {most}"))
    return max(found, key=lambda of: (math.isnan(of[0]), of[0]))


def _stretches(num_weights: int, world_size: int) -> int:
    """Into how many a weight is divided at most: fewer where all ranks together would send more than 64 MiB."""
    return max(1, min(STRETCHES, 2**23 // (num_weights * world_size)))


def _stretch_of(numel: int, most: int) -> int:
    return min(numel, max(LEAST_STRETCH, -(-numel // most)))


def _sums_of_stretches(value: Tensor, most: int) -> Tensor:
    """Shape (stretches,), at most so many; the last may be of fewer elements."""
    flat, numel = value.reshape(-1), _stretch_of(value.numel(), most)
    whole = len(flat) // numel * numel
    sums = flat[:whole].view(-1, numel).sum(1, dtype=torch.float64)
    rest = flat[whole:].sum(dtype=torch.float64)
    return torch.cat((sums, rest[None])) if whole < len(flat) else sums


# The update


@dataclass(frozen=True)
class _State:
    """Some elements of a weight and of its moments in float64: shape (samples,) each.

    ``rounding`` is of the dtype of the weight, ``of_moments`` of theirs.
    """

    weight: Tensor
    mean: Tensor
    square: Tensor
    rounding: float
    of_moments: float


def _state_of(weight: SteppedWeight) -> _State:
    tensors = weight.value, weight.moment("exp_avg"), weight.moment("exp_avg_sq")
    value, mean, square = (_sampled(tensor) for tensor in tensors)
    return _State(value, mean, square, torch.finfo(tensors[0].dtype).eps, torch.finfo(tensors[1].dtype).eps)


def _sampled(tensor: Tensor) -> Tensor:
    return sampled(tensor).to("cpu", torch.float64, copy=True)


@dataclass(frozen=True)
class _Update:
    """The last update of one weight: from what, to what by the formula, to what in fact.

    ``expected`` is None where the optimizer was given no gradient of it. ``below`` is as in
    :class:`~clusterbench.proof.by_chance.Updated`.
    """

    name: str
    before: _State
    expected: _State | None
    after: _State
    below: int = 0


def _updates(step: BuiltStep, before: Mapping[str, _State], gradients: Mapping[str, Tensor]) -> list[_Update]:
    updates = []
    for name, weight in stepped(step).items():
        if name in before:
            gradient = _left_of(weight) if step.leaves_gradients else gradients.get(name)
            expected = None if gradient is None else by_formula(before[name], gradient, step.num_steps)
            below = samples_to_the_column(weight.value)
            updates.append(_Update(name, before[name], expected, _state_of(weight), below))
    return updates


def _left_of(weight: SteppedWeight) -> Tensor | None:
    return None if weight.gradient is None else _sampled(weight.gradient)


def _off_formula(updates: Iterable[_Update]) -> Iterator[tuple[str, float]]:
    """Name of each weight and how far its last update is from the formula, in roundings."""
    for seen in updates:
        yield seen.name, math.inf if seen.expected is None else _roundings(seen.before, seen.expected, seen.after)


def by_formula(before: _State, gradient: Tensor, updates: int) -> _State:
    """One step of AdamW.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.

    Parameters
    ----------
    updates
        With this one.
    """
    beta_1, beta_2 = BETAS
    mean = beta_1 * before.mean + (1 - beta_1) * gradient
    square = beta_2 * before.square + (1 - beta_2) * gradient.square()
    direction = mean / (1 - beta_1**updates) / ((square / (1 - beta_2**updates)).sqrt() + EPSILON)
    weight = before.weight * (1 - LEARNING_RATE * WEIGHT_DECAY) - LEARNING_RATE * direction
    return _State(weight, mean, square, before.rounding, before.of_moments)


_SUMMANDS = 16
"""Roundings within an update, beside the one of the weight it is added to."""


def _roundings(before: _State, expected: _State, after: _State) -> float:
    """The largest distance of weight and moments, each in roundings of what it was computed from."""
    sizes = (
        (
            after.weight - expected.weight,
            expected.weight.norm() + _SUMMANDS * (expected.weight - before.weight).norm(),
            after.rounding,
        ),
        (after.mean - expected.mean, expected.mean.norm() + before.mean.norm(), after.of_moments),
        (after.square - expected.square, expected.square.norm(), after.of_moments),
    )
    off = [float(distance.norm() / (size * of_one)) if distance.any() else 0.0 for distance, size, of_one in sizes]
    return math.inf if any(map(math.isnan, off)) else max(off)


def _worst(off: Iterator[tuple[str, float]], names: list[str], rig: Rig) -> tuple[float | None, str]:
    """The largest over all ranks, with weight and rank; None where no rank has one. A collective."""
    own = torch.full((len(names),), -1.0, dtype=torch.float64)
    for name, value in off:
        own[names.index(name)] = value
    of_ranks = of_all_ranks(own, rig)
    if bool((of_ranks < 0).all()):
        return None, ""
    rank, index = divmod(int(of_ranks.argmax()), len(names))
    return float(of_ranks[rank, index]), f"{names[index]} on rank {rank}"
