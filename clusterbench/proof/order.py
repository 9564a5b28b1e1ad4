"""A pipeline computes in the order of its schedule: any other order gives the same numbers, in another time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from clusterbench.errors import WrongResult
from clusterbench.formulas.schedules.orders import Action
from clusterbench.proof.two_steps import over_all_ranks
from clusterbench.training.built_step import BuiltStep
from clusterbench.training.step import TrainingStep


def check_order(step: BuiltStep, device: torch.device) -> None:
    """Runs one step more and compares what this rank's stages computed with its schedule. A collective."""
    if isinstance(step, TrainingStep) and step.assembly.stages is not None:
        in_order(step.assembly.stages.timeline(step), step, device)


def in_order(timeline: Sequence[Sequence[Any]], step: BuiltStep, device: torch.device) -> Sequence[Sequence[Any]]:
    """The timeline of this rank's stages, once it was compared with their schedule.

    A collective: every rank comes to the same verdict.

    Parameters
    ----------
    timeline
        Of each action kind, stage and micro-batch, and what else was seen of it.

    Raises
    ------
    WrongResult
        On every rank, with the first action that differs where one does.
    """
    assert isinstance(step, TrainingStep)
    seen = [Action(kind, stage, at) for kind, stage, at, *_ in timeline]
    planned = step.job.order.actions if step.job.order else _one_by_one(step)
    first = next((at for at, pair in enumerate(zip_longest(seen, planned)) if pair[0] != pair[1]), -1)
    off = over_all_ranks({"": {"": float(first + 1)}}, device)[""][""]
    if off:
        raise WrongResult(
            f"{step.job.layout} does not compute in the order of its schedule: {_words(seen, planned, first)}. The "
            "numbers are the same, and the time is that of another schedule."
        )
    return timeline


def _one_by_one(step: TrainingStep) -> list[Action]:
    """Without a schedule each micro-batch is the first of a pipeline of its own."""
    (chunk,) = step.job.held
    return [Action(kind, chunk.stage, 0) for _ in step.micro_batches for kind in ("F", "B")]


def _words(seen: Sequence[Action], planned: Sequence[Action], first: int) -> str:
    if first < 0:
        return "another rank's actions are others"
    got, wanted = (str(actions[first]) if first < len(actions) else "nothing" for actions in (seen, planned))
    return f"action {first + 1} of {len(planned)} is {got}, and should be {wanted}"
