"""Messages between the ranks of a pipeline in a step."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from clusterbench.formulas.schedules import (
    stages_of,
)


class Messages(NamedTuple):
    """How many tensors of one microbatch a rank passes on per step."""

    activations_sent: int
    activations_received: int
    gradients_sent: int
    gradients_received: int


@cache  # a plan asks again for every rank
def messages(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> tuple[Messages, ...]:
    """Messages of each rank in a step: activations go to the next stage and gradients to the one before.

    Two stages on one rank, as at the turn of a V, need none.

    >>> messages("1f1b", num_ranks=2, num_microbatches=3, chunks=1)[0]
    Messages(activations_sent=3, activations_received=0, gradients_sent=0, gradients_received=3)
    """
    stages = [stages_of(schedule, num_ranks, chunks, rank) for rank in range(num_ranks)]
    rank_of = {stage: rank for rank, held in enumerate(stages) for stage in held}

    def count(rank: int, step: int) -> int:
        return num_microbatches * sum(rank_of.get(stage + step, rank) != rank for stage in stages[rank])

    between = ((count(rank, 1), count(rank, -1)) for rank in range(num_ranks))
    return tuple(Messages(after, before, before, after) for after, before in between)
