"""How much of more hardware arrives."""

from __future__ import annotations

STRONG, WEAK = "strong scaling", "weak scaling"
"""The same total work on more ranks, or the same work per rank; how the basis of a figure begins that is held against a
smaller run."""


def scaling_efficiency(
    throughput: float, world_size: int, smallest_throughput: float, smallest_world_size: int
) -> float:
    """Throughput per rank over that of the smallest run, as a fraction.

    Weak if work per rank is the same in both runs, strong if the total is; the formula does not know which.

    Parameters
    ----------
    throughput, smallest_throughput
        Of the whole job, in one unit, e.g. tokens per second.

    Examples
    --------
    8 ranks do 40 000 tokens/s and 64 ranks 256 000:

    >>> scaling_efficiency(256_000, 64, 40_000, 8)
    0.8
    """
    if smallest_throughput <= 0:
        raise ValueError(f"the smallest run has a throughput of {smallest_throughput}; efficiency needs one above 0.")
    return (throughput / world_size) / (smallest_throughput / smallest_world_size)


def speedup(smallest_time_s: float, time_s: float) -> float:
    """Time of the smallest run over this one's, for the same total work. Ideal is the ratio of their ranks.

    >>> speedup(8.0, 1.25)
    6.4
    """
    if time_s <= 0:
        raise ValueError(f"a run took {time_s} s; a speedup needs a time above 0.")
    return smallest_time_s / time_s
