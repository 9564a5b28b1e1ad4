"""Times during which something ran, as lists of intervals on one clock."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times without overlaps, in order.

    >>> merged([(2.0, 4.0), (0.0, 2.5), (5.0, 5.0)])
    [(0.0, 4.0)]
    """
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if end < start:
            raise ValueError(f"an interval ends at {end} s, before it starts at {start} s.")
        if end == start:
            continue
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def union_length(intervals: Iterable[Interval]) -> float:
    """Seconds covered by at least one interval.

    >>> union_length([(0.0, 2.5), (2.0, 4.0), (6.0, 7.0)])
    5.0
    """
    return sum(end - start for start, end in merged(intervals))


def common_length(first: Iterable[Interval], second: Iterable[Interval]) -> float:
    """Seconds covered by both lists.

    >>> common_length([(0.0, 4.0)], [(1.0, 2.0), (3.0, 6.0)])
    2.0
    """
    left, right = merged(first), merged(second)
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total


def exposed_communication(communication: list[Interval], compute: list[Interval]) -> float:
    """Seconds in which a rank communicates and does not compute.

    The part of communication that overlap failed to hide, and so the most a better overlap could win back on this rank.

    Parameters
    ----------
    communication, compute
        Kernel intervals ``(start_s, end_s)`` of one rank over one step, on one clock, in any order; they may overlap
        within and across the two lists.

    Returns
    -------
    Seconds, between 0.0 (all hidden) and the time communication covers.

    Notes
    -----
    Kernels on two communication streams at once count once: time is what a user waits for. A collective that spins
    while a peer is late looks like communication here; ``diagnoses.straggler`` tells the two apart.

    Examples
    --------
    Communication covers 0-4 s, compute covers 1-3 s; 0-1 s and 3-4 s show:

    >>> exposed_communication([(0.0, 2.5), (2.0, 4.0)], [(1.0, 3.0)])
    2.0
    """
    # Rounding must not turn "all hidden" into a negative time.
    return max(0.0, union_length(communication) - common_length(communication, compute))


def overlap_fraction(communication: list[Interval], compute: list[Interval]) -> float | None:
    """Hidden share of the communication: 1 when compute covers all of it; None when there was none to hide.

    HTA's definition, |communication and compute| / |communication|; exposed time over step time is another figure.

    >>> overlap_fraction([(0.0, 4.0)], [(1.0, 3.0)])
    0.5
    """
    total = union_length(communication)
    return 1 - exposed_communication(communication, compute) / total if total else None
