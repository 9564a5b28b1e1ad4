"""The job itself on one rank, at its own size, behind the clock: what its timed steps should have shown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import psutil
import torch

from clusterbench.engine.own_work import own_work_s
from clusterbench.engine.rig import Rig
from clusterbench.expected.total import fullest_moment
from clusterbench.job import TrainingJob
from clusterbench.job.passes import LAST, between, most_updates
from clusterbench.parallel import Parallelism, active_in
from clusterbench.proof.sketch import Sketch
from clusterbench.training.built_step import BuiltStep
from clusterbench.training.data import micro_batches
from clusterbench.training.step import TrainingStep

MOST_SECONDS = 10.0
"""Of one rank, while the others wait; where all updates take longer it is the first step alone, or nothing."""

_FREE_SHARE, _MOST_OF_A_HOST = 0.5, 2 * 2**30
"""Of the free bytes of a device; of a host no more than so many, as a limit of its processes may be lower."""


def on_one_rank(
    step: BuiltStep, every: Sequence[Parallelism], rig: Rig, has_new_tokens: bool = False
) -> dict[str, float]:
    """Loss and gradient norm of each step that may be compared, of those a case asks for, computed on rank 0 alone.

    In one forward of the whole batch where the model has no experts, so that nothing adds up over micro-batches. A
    collective, as one more step is, which tells how long it may take.

    Parameters
    ----------
    has_new_tokens
        Whether each step of the case has other tokens than the one before.

    Returns
    -------
    By the names of evidence; ``seconds`` is what it took. Empty on other ranks, and where it would take too long or too
    much memory.
    """
    job, step_s = step.job, own_work_s(step, rig.device) * rig.world_size
    if rig.rank:
        return {}
    alone, model = job.on_one_rank(), changes_of_model(every)
    if step_s > MOST_SECONDS or not has_room(alone, model, rig.device):
        return {}
    approximates = any(parallelism.approximates for parallelism in active_in(job.layout, every))
    updates = min(rig.asked_calls, most_updates(alone.shape.num_layers, alone.dtype))
    if step_s * updates > MOST_SECONDS or approximates:
        updates = 1
    began_s = time.monotonic()
    try:
        of_one = TrainingStep(alone, model, None, rig.device)
        seen = dict(_of_steps(of_one, updates, rig.asked_calls, began_s + MOST_SECONDS, has_new_tokens))
    except torch.OutOfMemoryError:  # of what else is on the device nothing is known
        return {}
    if approximates:  # from the third step on its gradients are others
        seen = {name: number for name, number in seen.items() if name.startswith("first_")}
    return {**seen, "seconds": time.monotonic() - began_s}


def _of_steps(
    step: TrainingStep, updates: int, asked: int, ends_s: float, has_new_tokens: bool = False
) -> Iterator[tuple[str, float]]:
    positions = torch.arange(step.job.seq_len, device=step.assembly.device)
    for update in range(updates):
        if has_new_tokens:
            step.micro_batches = micro_batches(step.job, 0, positions, update)
        for weight in step.weights:
            weight.let_go(keeps=False)  # whatever the step does with gradients of the one before
        if update and time.monotonic() > ends_s:  # a busy host takes longer than a rank's own work
            return
        # by its parts, and not by what a call says of itself: layouts would say the same of a step before
        loss = step.forward_backward()
        step.reduce()
        clipped_norm = step.clip()
        norm = step.gradient_norm() if clipped_norm is None else clipped_norm
        step.update()
        if update == 0:
            yield from _named("first_loss", "first_norm", loss, norm)
            yield from Sketch(step).numbers().items()
        elif update + 1 < asked:
            yield from _named(between(update + 1, "loss"), between(update + 1, "norm"), loss, norm)
    if updates == asked:
        yield from _named("loss", "norm", loss, norm)
        if asked > 1:
            yield from Sketch(step, LAST).numbers().items()
        yield "num_updates", float(asked)


def _named(of_loss: str, of_norm: str, loss: torch.Tensor, norm: torch.Tensor) -> Iterator[tuple[str, float]]:
    yield of_loss, float(loss)
    yield of_norm, float(norm)


def changes_of_model(every: Sequence[Parallelism]) -> tuple[Parallelism, ...]:
    """Those that one rank needs, too."""
    return tuple(parallelism for parallelism in every if parallelism.changes_model)


def has_room(alone: TrainingJob, model: Sequence[Parallelism], device: torch.device) -> bool:
    """Whether a device has room for a job on one rank beside what is there."""
    return fullest_moment(active_in(alone.layout, model), alone).held <= _room(device)


def _room(device: torch.device) -> float:
    if device.type == "cuda":
        return _FREE_SHARE * torch.cuda.mem_get_info(device)[0]
    return min(_FREE_SHARE * psutil.virtual_memory().available, _MOST_OF_A_HOST)
