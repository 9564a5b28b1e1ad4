"""What rounding makes of sums."""

from __future__ import annotations

import math
from collections.abc import Iterable

BFLOAT16_ROUNDING = 2.0**-9
"""Half the distance of two bfloat16 numbers just below a power of two: more than the root mean square of roundings."""


def rounding_of_sums(parts: Iterable[int], known: int = 1) -> float:
    """How far sums of so many parts each, one sum of the results of another, are off when each addition is rounded.

    A sum of ``k`` parts is rounded ``k - 1`` times. What is rounded when ``j`` parts have been added is, of parts that
    do not depend on each other, ``sqrt(j / k)`` of the whole, and less of parts that point the same way. So squares
    add up to those of ``(k + 1) / 2 - 1 / k`` roundings of the whole.

    Parameters
    ----------
    parts
        Numbers of parts, of each sum.
    known
        As many parts are added in what this is compared with: those roundings are left out.

    Returns
    -------
    The root mean square over that of the whole, in roundings.

    >>> rounding_of_sums([1]), rounding_of_sums([2]), round(rounding_of_sums([8, 64]), 2)
    (0.0, 1.0, 6.07)
    """
    return math.sqrt(max(0.0, sum(map(_squared, parts)) - _squared(known)))


def _squared(parts: int) -> float:
    return (parts + 1) / 2 - 1 / parts
