"""Quantiles of Student's t for whole degrees of freedom, exact but for rounding."""

from __future__ import annotations

import math
from functools import cache


@cache
def quantile(tail: float, degrees: int) -> float:
    """What Student's t exceeds with probability ``tail``.

    Parameters
    ----------
    tail
        One-sided, above 0 and at most 0.5; from 1e-9 on the result has six digits and more.
    degrees
        Degrees of freedom, 1 or more.

    Source
    ------
    Abramowitz and Stegun 1964, 26.7.3 and 26.7.4: the distribution as a finite sum; turned round by bisection.

    Examples
    --------
    The same table, 26.10:

    >>> round(quantile(0.025, 4), 3), round(quantile(0.0005, 10), 3), round(quantile(0.001, 1), 1)
    (2.776, 4.587, 318.3)
    """
    if not 0 < tail <= 0.5 or degrees < 1:
        raise ValueError(
            f"a quantile of Student's t needs 0 < tail <= 0.5 and 1 degree of freedom, not {tail}, {degrees}"
        )
    low, high = 0.0, 1.0
    while _tail(high, degrees) > tail:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, degrees) > tail else (low, middle)
    return (low + high) / 2


def _tail(t: float, degrees: int) -> float:
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    is_odd = degrees % 2
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    central = 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
    return (1 - central) / 2
