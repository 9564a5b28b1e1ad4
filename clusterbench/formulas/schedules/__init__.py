"""Pipeline schedules: the order of each rank's actions; beside it the time, memory and messages of the step.

The orders are those of ``torch.distributed.pipelining`` 2.13, written down again so that a step can be predicted
without torch, without devices and for more ranks than there are. A rank holds one or several *chunks* of the model;
each chunk is one *stage* of the pipeline, and stages count through the model from 0.

The kinds of action are F (forward), B (whole backward), I (the part of backward that gives the input's gradient, which
the stage before waits for) and W (the rest of it, the weights' gradients, which no rank waits for).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from clusterbench.formulas.schedules.orders import (
    Action,
    dualpipev,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    loop_stages,
    looped_bfs,
    naive,
    one_forward_one_backward,
    v_stages,
    zbv,
)
from clusterbench.words import plural


@dataclass(frozen=True)
class Schedule:
    """What is known of a schedule by its name alone.

    Parameters
    ----------
    torch_class
        Its name in ``torch.distributed.pipelining``; None where torch has none.
    chunks
        Model chunks per rank unless asked otherwise.
    any_chunks
        Whether other numbers of chunks work too.
    """

    what: str
    source: str
    torch_class: str | None
    placement: Literal["loop", "v"]
    chunks: int
    any_chunks: bool
    rank_order: Callable[[int, int, int, int], list[Action]]


SCHEDULES: dict[str, Schedule] = {
    "naive": Schedule(
        "one microbatch at a time through all stages and back; one rank computes while the others wait",
        "the model parallelism that Huang et al. 2019, arXiv:1811.06965, figure 2b, starts from",
        None,
        "loop",
        1,
        False,
        naive,
    ),
    "gpipe": Schedule(
        "all microbatches forward, then all backward; holds the activations of every microbatch",
        "Huang et al. 2019, arXiv:1811.06965",
        "ScheduleGPipe",
        "loop",
        1,
        False,
        gpipe,
    ),
    "1f1b": Schedule(
        "forward and backward in turn once the pipeline is full; idles like gpipe, but holds p microbatches at most",
        "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1",
        "Schedule1F1B",
        "loop",
        1,
        False,
        one_forward_one_backward,
    ),
    "interleaved_1f1b": Schedule(
        "1f1b with several chunks per rank, earlier microbatches first: less idle time for more messages",
        "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
        "ScheduleInterleaved1F1B",
        "loop",
        2,
        True,
        interleaved_1f1b,
    ),
    "looped_bfs": Schedule(
        "gpipe with several chunks per rank, earlier chunks first: all microbatches through a chunk, then the next",
        "Lamy-Poirier 2022, arXiv:2211.05953",
        "ScheduleLoopedBFS",
        "loop",
        2,
        True,
        looped_bfs,
    ),
    "interleaved_zero_bubble": Schedule(
        "interleaved 1f1b with backward split, weights' gradients late enough to fill the end of the step (ZB1P)",
        "Qi et al. 2023, arXiv:2401.10241",
        "ScheduleInterleavedZeroBubble",
        "loop",
        2,
        True,
        interleaved_zero_bubble,
    ),
    "zbv": Schedule(
        "two chunks per rank in a V and backward split; no rank waits inside the step if F, I and W take equally long",
        "Qi et al. 2023, arXiv:2401.10241, section 6",
        "ScheduleZBVZeroBubble",
        "v",
        2,
        False,
        zbv,
    ),
    "dualpipev": Schedule(
        "two chunks per rank in a V, forward of one beside backward of the other, to hide experts' messages",
        "DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1; github.com/deepseek-ai/DualPipe",
        "ScheduleDualPipeV",
        "v",
        2,
        False,
        dualpipev,
    ),
}


def default_chunks(schedule: str) -> int:
    """Model chunks per rank unless asked otherwise.

    >>> default_chunks("1f1b"), default_chunks("zbv")
    (1, 2)
    """
    return schedule_named(schedule).chunks


def stages_of(schedule: str, num_ranks: int, chunks: int, rank: int) -> tuple[int, ...]:
    """The stages a rank holds, by chunk.

    >>> stages_of("interleaved_1f1b", num_ranks=4, chunks=2, rank=1)
    (1, 5)
    >>> stages_of("zbv", num_ranks=4, chunks=2, rank=1)
    (1, 6)
    """
    if schedule_named(schedule).placement == "v":
        return v_stages(rank, num_ranks)
    return loop_stages(rank, num_ranks, chunks)


def objection_to_chunks(schedule: str, chunks: int) -> str | None:
    """Why no number of ranks and microbatches lets the schedule have so many chunks; None if some does.

    >>> print(objection_to_chunks("1f1b", 2), objection_to_chunks("interleaved_1f1b", 3))
    1f1b needs exactly 1 chunk per rank, not 2. None
    """
    traits = schedule_named(schedule)
    if chunks < 1:
        return f"{schedule} needs at least 1 chunk per rank, not {chunks}."
    if not traits.any_chunks and chunks != traits.chunks:
        return f"{schedule} needs exactly {plural(traits.chunks, 'chunk')} per rank, not {chunks}."
    return None


def objection(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> str | None:
    """Why torch would refuse the schedule at these sizes, in a sentence with what would do; None if it would not.

    >>> print(objection("dualpipev", num_ranks=4, num_microbatches=6, chunks=2))
    dualpipev needs as many microbatches as stages: at least 8 for 4 ranks of 2 chunks, not 6.
    """
    for value, name in [(num_ranks, "rank"), (num_microbatches, "microbatch")]:
        if value < 1:
            return f"{schedule} needs at least 1 {name}, not {value}."
    if reason := objection_to_chunks(schedule, chunks):
        return reason
    if schedule == "1f1b" and num_microbatches < num_ranks:
        needs = f"at least {num_ranks}, not {num_microbatches}"
        return f"1f1b needs as many microbatches as stages: {needs}; gpipe takes fewer."
    if schedule == "dualpipev" and num_microbatches < 2 * num_ranks:
        needs = f"at least {2 * num_ranks} for {num_ranks} ranks of 2 chunks, not {num_microbatches}"
        return f"dualpipev needs as many microbatches as stages: {needs}."
    rounds = max(1, num_microbatches // num_ranks)
    if schedule.startswith("interleaved") and num_microbatches % rounds:
        lower, upper = rounds * num_ranks, (rounds + 1) * num_ranks
        return (
            f"{schedule} on {num_ranks} ranks runs {num_microbatches} microbatches in {rounds} rounds, but "
            f"{num_microbatches} is not a multiple of {rounds}; {lower} and {upper} microbatches are accepted."
        )
    return None


def order(schedule: str, num_ranks: int, num_microbatches: int, chunks: int) -> list[list[Action]]:
    """What each rank computes, in order.

    Raises ValueError with the :func:`objection`, if there is one.

    >>> [" ".join(map(str, actions)) for actions in order("1f1b", num_ranks=2, num_microbatches=3, chunks=1)]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """
    if refused := objection(schedule, num_ranks, num_microbatches, chunks):
        raise ValueError(refused)
    return [schedule_named(schedule).rank_order(rank, num_ranks, num_microbatches, chunks) for rank in range(num_ranks)]


@cache  # a plan asks for every case
def splits_backward(schedule: str) -> bool:
    """Whether gradients of weights are computed apart from those of inputs.

    >>> splits_backward("zbv"), splits_backward("1f1b")
    (True, False)
    """
    orders = order(schedule, 2, 4, default_chunks(schedule))
    return any(action.kind == "I" for actions in orders for action in actions)


def schedule_named(schedule: str) -> Schedule:
    if schedule not in SCHEDULES:
        raise ValueError(f"'{schedule}' is no pipeline schedule; there are {', '.join(SCHEDULES)}.")
    return SCHEDULES[schedule]
