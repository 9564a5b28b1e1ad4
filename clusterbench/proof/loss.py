"""The timed step proves itself: what its last iteration computed is a number."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from clusterbench.engine.rig import Rig
from clusterbench.errors import WrongResult
from clusterbench.training.built_step import BuiltStep
from clusterbench.words import plural


def confirm_loss(step: BuiltStep, rig: Rig) -> dict[str, float]:
    """The loss of the last timed step over the global batch. A collective: every rank gets the same answer.

    Raises
    ------
    WrongResult
        On every rank, if the loss of any is not finite.
    """
    assert step.last_loss is not None
    value = float(step.global_loss(step.last_loss))
    losses = torch.zeros(rig.world_size, dtype=torch.float64, device=rig.device)
    losses[rig.rank] = value
    dist.all_reduce(losses)
    not_finite = [rank for rank, seen in enumerate(losses.tolist()) if not math.isfinite(seen)]
    if not_finite:
        raise WrongResult(
            f"the loss of {step.job.layout} is not finite: {losses[not_finite[0]]} on rank {not_finite[0]} after "
            f"{plural(step.num_steps, 'step')}. The time of such a step is not that of training."
        )
    return {"loss": value}
