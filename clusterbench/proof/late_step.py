"""A step behind the timed ones, held against one rank that is given its weights: what late steps compute, however late.

Losses of two layouts drift apart with each update, until nothing can be concluded from them: in bfloat16 of 4 layers
after 8. Of one step from the same weights they are about as near as those of the first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from clusterbench.engine.own_work import own_work_s
from clusterbench.engine.rig import Rig
from clusterbench.job import BETAS, weight_shapes
from clusterbench.job.passes import DUE, GRADIENT_OF, LAST, PROJECTIONS, kind_of_projection, projection
from clusterbench.measured.agreement import Number, distances
from clusterbench.parallel import Parallelism
from clusterbench.proof.own_size import changes_of_model, has_room
from clusterbench.proof.sketch import Sketch
from clusterbench.proof.stepped import number_of, of_all_ranks
from clusterbench.training.built_step import BuiltStep, lying_at
from clusterbench.training.step import TrainingStep

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


def late_step(step: BuiltStep, every: Sequence[Parallelism], rig: Rig, own_s: Sequence[float] = ()) -> dict[str, float]:
    """Runs a step more, and the same on rank 0 alone from the same weights. A collective.

    Parameters
    ----------
    own_s
        Seconds of own work in steps before, where they are known.

    Returns
    -------
    On rank 0 as :data:`~clusterbench.job.passes.LATE_STEP` has it. Empty on others, and where one rank has no room for
    it, would take too long, or has a loss below :data:`LEAST_LOSS`.
    """
    began_s, num_updates = time.monotonic(), step.num_steps
    of_rank_s = min(own_s) if own_s else own_work_s(step, rig.device)
    alone = _on_one_rank(step, every, rig, of_rank_s * rig.world_size)
    if not rig.host_tell([float(alone is not None)], 1)[0]:
        return {}
    _hand_weights(step, alone, rig)
    seen = _next_of(step, rig)
    if alone is None or (due := _computed(alone)).loss < LEAST_LOSS:
        return {}
    return {
        "loss": seen.loss,
        "norm": seen.norm,
        f"loss{DUE}": due.loss,
        f"norm{DUE}": due.norm,
        **{f"{GRADIENT_OF}{kind}": off for kind, off in distances(seen.gradients, due.gradients).items()},
        "num_updates": float(num_updates),
        "seconds": time.monotonic() - began_s,
    }


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
