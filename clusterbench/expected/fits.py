"""Whether a step fits a card, from the bytes of its live tensors; no torch."""

from __future__ import annotations

from typing import Literal

CLOSE = 0.9
"""Of a card's memory: what is above may not fit for want of what is not seen, see :data:`NOT_SEEN`."""

NOT_SEEN = (
    "Not seen: the allocator's rounding and fragmentation, workspaces of kernels, buffers of NCCL, the CUDA context."
)

CARDS_GB = (24, 80, 141, 192)
"""Memories of cards that are asked about where none is named: RTX 4090, H100, H200, MI300X."""

Fit = Literal["fits", "close, measure it", "does not fit"]


def fit(needed_bytes: float, memory_bytes: float) -> Fit:
    """Whether tensors of ``needed_bytes`` fit a card of ``memory_bytes``.

    >>> [fit(needed, 80e9) for needed in (70e9, 75e9, 81e9)]
    ['fits', 'close, measure it', 'does not fit']
    """
    if needed_bytes > memory_bytes:
        return "does not fit"
    return "close, measure it" if needed_bytes > CLOSE * memory_bytes else "fits"


def fit_words(needed_bytes: float, memory_bytes: float) -> str:
    """The same, and by how much.

    >>> fit_words(70e9, 80e9), fit_words(81e9, 80e9)
    ('fits, 10.0 GB left', 'does not fit, 1.0 GB too much')
    """
    over_gb = (needed_bytes - memory_bytes) / 1e9
    how = f"{over_gb:.1f} GB too much" if over_gb > 0 else f"{-over_gb:.1f} GB left"
    return f"{fit(needed_bytes, memory_bytes)}, {how}"
