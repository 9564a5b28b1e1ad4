"""Which positions of a sequence a rank of the context-parallel group holds. No torch."""

from __future__ import annotations

KINDS = ("ring", "zigzag", "all_gather", "ulysses")
IN_TWO_CHUNKS = ("zigzag", "all_gather")
"""Kinds whose ranks hold one chunk from the front of the sequence and the matching one from its end."""


def positions(seq_len: int, degree: int, rank: int, kind: str) -> list[range]:
    """The positions of a sequence that a cp rank holds, in its order.

    >>> positions(16, 4, 1, "ring"), positions(16, 4, 1, "zigzag")
    ([range(4, 8)], [range(2, 4), range(12, 14)])
    """
    if kind not in IN_TWO_CHUNKS:
        size = seq_len // degree
        return [range(rank * size, (rank + 1) * size)]
    size = seq_len // (2 * degree)
    return [range(chunk * size, (chunk + 1) * size) for chunk in (rank, 2 * degree - 1 - rank)]
