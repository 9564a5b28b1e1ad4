"""Idle time of pipeline schedules."""

from __future__ import annotations


def bubble_fraction(num_stages: int, num_microbatches: int, chunks: int = 1) -> float:
    """Idle share of a 1F1B step, as a fraction of the whole step.

    Assumes equal stages and free communication. Megatron's papers divide by ideal time instead:
    :func:`bubble_over_ideal_time`. GPipe idles as long, and differs in memory.

    Parameters
    ----------
    chunks
        Model chunks per stage of the interleaved schedule; 1 is plain 1F1B.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.

    >>> bubble_fraction(num_stages=4, num_microbatches=12)
    0.2
    """
    idle = num_stages - 1
    return idle / (chunks * num_microbatches + idle)


def bubble_over_ideal_time(num_stages: int, num_microbatches: int, chunks: int = 1) -> float:
    """Idle time of a 1F1B step over the time it would take without any, as Megatron's papers print it.

    Source: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2.

    >>> bubble_over_ideal_time(num_stages=4, num_microbatches=12)
    0.25
    """
    return (num_stages - 1) / (chunks * num_microbatches)


def microbatches_in_flight(num_stages: int, num_microbatches: int, stage: int) -> int:
    """Microbatches whose activations a stage of 1F1B holds at its peak; the first stage holds the most.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.

    >>> [microbatches_in_flight(4, 12, stage) for stage in range(4)]
    [4, 3, 2, 1]
    """
    return min(num_microbatches, num_stages - stage)


def step_time_1f1b(
    num_stages: int, num_microbatches: int, forward_s: float, backward_s: float, send_s: float = 0.0
) -> float:
    """Seconds of one 1F1B step of equal stages, by playing the schedule through.

    Unlike the closed form, it counts the time activations and gradients spend between stages.

    Parameters
    ----------
    forward_s, backward_s
        Time of one microbatch on one stage; backward covers inputs and weights.
    send_s
        Time from the end of a computation to its result being on the next stage. Nobody computes slower for it.

    Examples
    --------
    Four stages and twelve microbatches; ideal would be 12 x 3 s:

    >>> step_time_1f1b(4, 12, forward_s=1.0, backward_s=2.0)
    45.0
    """
    done: dict[tuple[str, int, int], float] = {}
    clocks = [0.0] * num_stages
    orders = [_order_1f1b(num_stages, num_microbatches, stage) for stage in range(num_stages)]
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, microbatch = order[0]
                ready = _ready(done, kind, stage, microbatch, num_stages, send_s)
                if ready is None:
                    break
                order.pop(0)
                clocks[stage] = max(clocks[stage], ready) + (forward_s if kind == "forward" else backward_s)
                done[kind, stage, microbatch] = clocks[stage]
    return max(clocks)


def _order_1f1b(num_stages: int, num_microbatches: int, stage: int) -> list[tuple[str, int]]:
    warmup = min(num_microbatches, num_stages - stage - 1)
    order = [("forward", microbatch) for microbatch in range(warmup)]
    for microbatch in range(num_microbatches - warmup):
        order += [("forward", warmup + microbatch), ("backward", microbatch)]
    return order + [("backward", microbatch) for microbatch in range(num_microbatches - warmup, num_microbatches)]


def _ready(
    done: dict[tuple[str, int, int], float], kind: str, stage: int, microbatch: int, num_stages: int, send_s: float
) -> float | None:
    """When the input of a computation is there; None while its producer has not run."""
    if kind == "forward":
        if stage == 0:
            return 0.0
        sent = done.get(("forward", stage - 1, microbatch))
    elif stage == num_stages - 1:
        return done.get(("forward", stage, microbatch))
    else:
        sent = done.get(("backward", stage + 1, microbatch))
    return None if sent is None else sent + send_s
