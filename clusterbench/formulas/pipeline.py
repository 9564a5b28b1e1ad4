"""Idle time of pipeline schedules in closed form; :mod:`clusterbench.formulas.schedules` plays them through."""

from __future__ import annotations

from itertools import accumulate, pairwise


def layers_by_stage(num_layers: int, num_stages: int) -> tuple[range, ...]:
    """The layers of each stage: as many of each, or where that does not come out even one fewer at the ends first.

    The last stage has norm, head and loss beside its layers and the first one the embedding, so the stages between
    them take one layer more before the first does, the earlier ones first; the last never does. So the first and the
    last of Llama 3's 126 layers on 16 stages are 7 each (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2).
    torchtitan counts embedding and head as a layer each (``torchtitan/distributed/pipeline_parallel.py``), and so does
    Megatron-Core if told to (``account_for_embedding_in_pipeline_split``, ``account_for_loss_in_pipeline_split``).
    Where two layers more come out even, all three are the same; where they do not, torchtitan leaves the last stage up
    to two layers behind the others, and here it is one.

    >>> [len(layers) for layers in layers_by_stage(126, 16)]
    [7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7]
    >>> layers_by_stage(5, 2)
    (range(0, 3), range(3, 5))
    """
    each, more = divmod(num_layers, num_stages)
    in_turn = [*range(1, num_stages - 1), 0, num_stages - 1]
    longer = set(in_turn[:more])
    ends = accumulate((each + (stage in longer) for stage in range(num_stages)), initial=0)
    return tuple(range(first, end) for first, end in pairwise(ends))


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


def zero_bubble_h1(
    num_stages: int,
    num_microbatches: int,
    forward_s: float,
    inputs_s: float,
    weights_s: float,
    send_s: float = 0.0,
) -> float:
    """Idle share of a ZB-H1 step of equal stages, as a fraction of the whole step.

    Weights' gradients fill part of the end of the step; a stage holds no more microbatches than with 1F1B.

    Parameters
    ----------
    forward_s, inputs_s, weights_s
        Time of one microbatch on one stage: forward, and the two parts of backward.
    send_s
        Time from the end of a computation to its result being on the next stage.

    Source: Qi et al. 2023, arXiv:2401.10241, for the form with free sends. The send terms here are those with which it
    gives the paper's table 5 to the last digit at 3 microbatches per stage; at more it gives up to 0.003 less.

    >>> round(zero_bubble_h1(4, 12, forward_s=1.0, inputs_s=1.0, weights_s=1.0), 4)
    0.0769
    """
    idle_s = (num_stages - 1) * (forward_s + inputs_s - weights_s + 4 * send_s)
    return _idle_share(idle_s, num_microbatches * (forward_s + inputs_s + weights_s))


def zero_bubble_h2(
    num_stages: int,
    num_microbatches: int,
    forward_s: float,
    inputs_s: float,
    weights_s: float,
    send_s: float = 0.0,
) -> float:
    """Idle share of a ZB-H2 step: as :func:`zero_bubble_h1`, but the first stage holds ``2 * num_stages - 1``.

    Of a stage between its own first forward and its own end, as the paper counts: stages begin one forward after the
    other, end as far apart, and each goes on with its next step, for no norm of all gradients is waited for. Where one
    is, all end with the last, ``(num_stages - 1) * forward_s`` later, which with F = I = W is no sooner than ZB-H1.

    >>> zero_bubble_h2(4, 12, forward_s=1.0, inputs_s=1.0, weights_s=1.0)
    0.0
    """
    idle_s = (num_stages - 1) * (forward_s + inputs_s - 2 * weights_s + 2 * send_s)
    return _idle_share(idle_s, num_microbatches * (forward_s + inputs_s + weights_s))


def _idle_share(idle_s: float, busy_s: float) -> float:
    # Weights that take longer than everything they fill leave nothing idle, not less than nothing.
    return max(0.0, idle_s) / (max(0.0, idle_s) + busy_s)
