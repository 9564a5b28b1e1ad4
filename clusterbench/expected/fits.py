"""Whether a step fits a card, from the bytes of its live tensors; no torch."""

from __future__ import annotations

from typing import Literal

CLOSE = 0.9
"""Of a card's memory: what is above may not fit for want of what is not seen, see :data:`NOT_SEEN`."""

SHOWN = 2**30 / 1e9
"""Of a card's memory as sold, what its driver shows at most: the GB of a data sheet are nearly GiB.

An H100 of 80 GB shows 81,559 MiB, 85.5e9 bytes; an H200 of 141 GB 143,771 MiB, 150.8e9; an RTX 4090 of 24 GB
24,564 MiB.
"""

NOT_SEEN = (
    "Not seen: the allocator's rounding and fragmentation, workspaces of kernels, buffers of NCCL, the CUDA context."
)

CARDS_GB = (24, 80, 141, 192)
"""Memories of cards that are asked about where none is named: RTX 4090, H100, H200, MI300X."""

Fit = Literal["fits", "close, measure it", "does not fit"]


def fit(needed_bytes: float, memory_bytes: float) -> Fit:
    """Whether tensors of ``needed_bytes`` fit a card that is sold with ``memory_bytes``.

    >>> [fit(needed, 80e9) for needed in (70e9, 75e9, 81e9, 87e9)]
    ['fits', 'close, measure it', 'close, measure it', 'does not fit']
    """
    if needed_bytes > SHOWN * memory_bytes:
        return "does not fit"
    return "close, measure it" if needed_bytes > CLOSE * memory_bytes else "fits"


def fit_words(needed_bytes: float, memory_bytes: float) -> str:
    """The same, and by how much.

    >>> fit_words(70e9, 80e9), fit_words(87e9, 80e9)
    ('fits, 10.0 GB left', 'does not fit, 7.0 GB too much')
    >>> fit_words(81e9, 80e9)
    'close, measure it: 1.0 GB above what is sold, and the driver shows at most 85.9 GB'
    """
    verdict, over_gb = fit(needed_bytes, memory_bytes), (needed_bytes - memory_bytes) / 1e9
    if over_gb <= 0:
        return f"{verdict}, {-over_gb:.1f} GB left"
    if verdict == "does not fit":
        return f"{verdict}, {over_gb:.1f} GB too much"
    shown_gb = SHOWN * memory_bytes / 1e9
    return f"{verdict}: {over_gb:.1f} GB above what is sold, and the driver shows at most {shown_gb:.1f} GB"
