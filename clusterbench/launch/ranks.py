"""Ranks in words."""

from __future__ import annotations

from collections.abc import Sequence


def name_ranks(ranks: Sequence[int]) -> str:
    """Sorted ranks as a person says them.

    >>> name_ranks([3]), name_ranks([8, 9, 10, 12])
    ('rank 3', 'ranks 8-10 and 12')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    joined = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {joined}"
