"""A step behind the timed ones, held against one rank that is given its weights: what late steps compute, however late.

Losses of two layouts drift apart with each update, until nothing can be concluded from them: in bfloat16 of 4 layers
after 8. Of one step from the same weights they are about as near as those of the first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from clusterbench.engine.own_work import own_work_s
from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.job import BETAS, weight_shapes
from clusterbench.job.passes import LAST, PROJECTIONS, kind_of_projection, projection
from clusterbench.measured.agreement import Number, distances, limits_from_same_weights
from clusterbench.parallel import Parallelism
from clusterbench.proof.own_size import changes_of_model, has_room
from clusterbench.proof.sketch import Sketch
from clusterbench.proof.stepped import number_of, of_all_ranks
from clusterbench.training.built_step import BuiltStep, lying_at
from clusterbench.training.step import TrainingStep
from clusterbench.types import Point
from clusterbench.words import plural

MOST_SECONDS = 2.0
"""Of one rank, while the others wait, in every case."""

LEAST_LOSS = 1.0
"""Gradients of tokens that are known by heart are small, and rounding is a large part of them: in bfloat16 half of them
at a loss of 0.01."""


class Shown(NamedTuple):
    """What one step showed: its loss, the norm of all gradients, and by kind of weight the clipped ones, projected."""

    loss: float
    norm: float
    gradients: Mapping[str, Number]


def check_late_step(
    step: BuiltStep, every: Sequence[Parallelism], rig: Rig, point: Point, own_s: Sequence[float] = ()
) -> dict[str, float]:
    """Runs a step more, and the same on rank 0 alone from the same weights. A collective.

    Parameters
    ----------
    own_s
        Seconds of own work in steps before, where they are known.

    Returns
    -------
    How far they are apart by the names of :func:`~clusterbench.measured.agreement.limits_from_same_weights`, and the
    ``seconds`` it took. Empty where one rank has no room for it, would take too long, or has a loss below
    :data:`LEAST_LOSS`.

    Raises
    ------
    WrongResult
        On every rank, if they are further apart than is allowed.
    """
    began_s, num_updates = time.monotonic(), step.num_steps
    of_rank_s = min(own_s) if own_s else own_work_s(step, rig.device)
    alone = _on_one_rank(step, every, rig, of_rank_s * rig.world_size)
    if not rig.host_tell([float(alone is not None)], 1)[0]:
        return {}
    _hand_weights(step, alone, rig)
    seen = _next_of(step, rig)
    off, wrong = dict[str, float](), ""
    if alone is not None:
        off, wrong = _apart(seen, _computed(alone), point)
    if wrong := rig.tell(wrong, 0):
        raise WrongResult(f"{step.job.layout}, after {plural(num_updates, 'update')}: {wrong}")
    return {**off, "seconds": time.monotonic() - began_s} if off else {}


def _on_one_rank(step: BuiltStep, every: Sequence[Parallelism], rig: Rig, step_s: float) -> TrainingStep | None:
    job, model = step.job.on_one_rank(), changes_of_model(every)
    if rig.rank or step_s > MOST_SECONDS or not has_room(job, model, rig.device):
        return None
    try:
        return TrainingStep(job, model, None, rig.device)
    except torch.OutOfMemoryError:  # of what else is on the device nothing is known
        return None


def _hand_weights(step: BuiltStep, alone: TrainingStep | None, rig: Rig) -> None:
    """Gives rank 0 the weights of all ranks, one after the other. A collective."""
    parts, shapes = step.parts(), weight_shapes(step.job.on_one_rank())
    own = torch.zeros(len(shapes), dtype=torch.float64)
    for index, name in enumerate(shapes):
        if name in parts and parts[name].value.numel():
            own[index] = number_of(parts[name].place)
    of_ranks, taken_by = of_all_ranks(own, rig), {} if alone is None else alone.parts()
    dtype = next(iter(parts.values())).value.dtype
    for index, (name, shape) in enumerate(shapes.items()):
        whole = torch.zeros(shape, dtype=dtype, device=rig.device)
        if own[index] and not (of_ranks[: rig.rank, index] == own[index]).any():  # each part from the first that has it
            lying_at(parts[name].place, whole).copy_(parts[name].value)
        rig.comm.reduce(whole)
        if name in taken_by:
            taken_by[name].value.copy_(whole)


def _next_of(step: BuiltStep, rig: Rig) -> Shown:
    """Runs a step. Its gradient is what it left in Adam's means, less what was there. A collective."""
    before = _by_kind(Sketch(step, LAST).numbers(rig))
    loss = step.global_loss(step())
    norm = step.gradient_norm() if step.last_norm is None else step.last_norm
    behind = _by_kind(Sketch(step, LAST).numbers(rig))
    gradients = {
        kind: tuple(new - BETAS[0] * old for new, old in zip(numbers, before[kind], strict=True))
        for kind, numbers in behind.items()
    }
    return Shown(float(loss), float(norm), gradients)


def _computed(alone: TrainingStep) -> Shown:
    """A step as the first one is: by its parts, from means of zero."""
    loss = alone.forward_backward()
    alone.reduce()
    clipped_norm = alone.clip()
    norm = alone.gradient_norm() if clipped_norm is None else clipped_norm
    alone.update()
    return Shown(float(loss), float(norm), _by_kind(Sketch(alone, LAST).numbers()))


def _by_kind(numbers: Mapping[str, float]) -> dict[str, Number]:
    """A norm and projections for each kind of weight. Of a difference the norm is none, and nothing asks for it."""
    kinds = dict.fromkeys(kind for name in numbers if (kind := kind_of_projection(name, LAST)))
    return {kind: tuple(numbers[projection(kind, at, LAST)] for at in range(1 + PROJECTIONS)) for kind in kinds}


def _apart(seen: Shown, due: Shown, point: Point) -> tuple[dict[str, float], str]:
    """How far a step is from one rank, and what is wrong, if anything is; neither where nothing can be concluded."""
    if due.loss < LEAST_LOSS:
        return {}, ""
    limits = limits_from_same_weights(point)
    of_weights = distances(seen.gradients, due.gradients)
    kind = max(of_weights, key=lambda name: (math.isnan(of_weights[name]), of_weights[name]))
    compared = {
        "first_loss": (f"the loss of one step more is {seen.loss:.7g}, and {due.loss:.7g}", _off(seen.loss, due.loss)),
        "first_norm": (f"its gradient norm is {seen.norm:.7g}, and {due.norm:.7g}", _off(seen.norm, due.norm)),
        "first_gradients": (f"its gradient of {kind} is another than", of_weights[kind]),
    }
    wrong = [
        f"{what} on one rank from the same weights: {off:.2g} apart, where {limits[name]:.2g} is allowed in "
        f"{point['dtype']}"
        for name, (what, off) in compared.items()
        if not off <= limits[name]
    ]
    return {name: off for name, (_, off) in compared.items()}, wrong[0] if wrong else ""


def _off(number: float, due: float) -> float:
    return abs(number / due - 1) if due else math.inf
