"""How often to save a checkpoint, and what share of the time is training then."""

from __future__ import annotations

import math


def best_interval(save_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves that lose the least time.

    Failures come at any moment, one in ``mtbf_s`` seconds, and what was done since the last save is done again. Of
    saves far shorter than that it is Young's sqrt(2 save_s mtbf_s).

    Parameters
    ----------
    save_s
        For which a save stops training.

    Raises
    ------
    ValueError
        If one of them is not above 0.

    Source
    ------
    Maximum of :func:`training_share`: 1 - u = exp(-u - save_s / mtbf_s), with u the interval over ``mtbf_s``. Daly
    2006, doi:10.1016/j.future.2004.11.016, approximates it; Young 1974, doi:10.1145/361147.361115, of short saves.

    Examples
    --------
    A save of 30 s where something fails every 3 hours:

    >>> round(best_interval(30, 3 * 3600)), round(math.sqrt(2 * 30 * 3 * 3600))
    (785, 805)
    """
    _expect_positive(save_s, mtbf_s)
    share = save_s / mtbf_s
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if middle < 1 and math.log1p(-middle) + middle + share > 0:
            low = middle
        else:
            high = middle
    return low * mtbf_s


def training_share(interval_s: float, save_s: float, mtbf_s: float, behind_s: float = 0.0) -> float:
    """Share of all time that is training which is never done again, as a fraction; restarts are not in it.

    Parameters
    ----------
    interval_s
        Of training between two saves.
    save_s
        For which a save stops training.
    mtbf_s
        Between two failures, which come at any moment.
    behind_s
        For which a save then goes on beside training; if something fails meanwhile, the save before it counts. Such a
        failure costs that much more, which is right as long as it is short beside ``mtbf_s``.

    Raises
    ------
    ValueError
        If an interval, a save or the time between failures is not above 0.

    Source
    ------
    Daly 2006, doi:10.1016/j.future.2004.11.016, without the time of restarts.

    Examples
    --------
    >>> round(training_share(785, 30, 3 * 3600), 3), round(training_share(785, 1, 3 * 3600, behind_s=29), 3)
    (0.927, 0.96)
    """
    _expect_positive(interval_s, save_s, mtbf_s)
    kept = interval_s / (mtbf_s * math.expm1((interval_s + save_s) / mtbf_s))
    return max(0.0, kept - behind_s / mtbf_s)


def _expect_positive(*seconds: float) -> None:
    if min(seconds) <= 0:
        raise ValueError(f"{min(seconds)} s: intervals, saves and times between failures are above 0.")
