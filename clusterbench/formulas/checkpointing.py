"""How often a job fails, how often to save a checkpoint, and what share of the time is training then."""

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


def training_share(
    interval_s: float, save_s: float, mtbf_s: float, behind_s: float = 0.0, restart_s: float = 0.0
) -> float:
    """Share of all time that is training which is never done again, as a fraction.

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
    restart_s
        From a failure until training goes on from the last save; what fails meanwhile begins it anew.

    Raises
    ------
    ValueError
        If an interval, a save or the time between failures is not above 0.

    Source
    ------
    Daly 2006, doi:10.1016/j.future.2004.11.016, of a job that is long beside ``mtbf_s``.

    Examples
    --------
    >>> round(training_share(785, 30, 3 * 3600), 3), round(training_share(785, 1, 3 * 3600, behind_s=29), 3)
    (0.927, 0.96)
    """
    _expect_positive(interval_s, save_s, mtbf_s)
    kept = interval_s / (mtbf_s * math.expm1((interval_s + save_s) / mtbf_s))
    return max(0.0, kept - behind_s / mtbf_s) * math.exp(-restart_s / mtbf_s)


def time_between_failures(num_nodes: int, failures: float) -> float:
    """Seconds between two failures of a job that any of its nodes stops.

    Parameters
    ----------
    failures
        Of one node, in 1,000 days.

    Source
    ------
    Kokolis et al. 2024, arXiv:2410.21680: 6.50 and 2.34 on two clusters of A100, of nodes with eight. Llama 3 405B was
    stopped unexpectedly 419 times in 54 days on 2,048 nodes (arXiv:2407.21783, section 3.3.4): 3.79.

    Examples
    --------
    Hours, of 16,384 GPUs:

    >>> round(time_between_failures(2048, 6.50) / 3600, 1), round(time_between_failures(2048, 3.79) / 3600, 1)
    (1.8, 3.1)
    """
    _expect_positive(num_nodes, failures)
    return 1000 * 86400 / (num_nodes * failures)


def waiting_share(num_spares: int, repair_s: float, mtbf_s: float) -> float:
    """Share of all time in which a job stands still because more nodes are repaired than there are spares.

    With a spare it goes on at once; without one it waits for the first node that is back. Nodes are repaired at the
    same time, and nothing fails while the job stands.

    Parameters
    ----------
    repair_s
        Mean time until a failed node can be used again; how that varies does not matter.
    mtbf_s
        Between two failures of the running job.

    Source
    ------
    Erlang's loss formula (1917), where a node under repair is a busy line, and one more than the spares are lines.

    Examples
    --------
    A node fails every 3 hours, and is repaired in a day:

    >>> [round(waiting_share(spares, 86400, 3 * 3600), 3) for spares in (0, 4, 8, 16)]
    [0.889, 0.479, 0.173, 0.002]
    """
    _expect_positive(repair_s, mtbf_s)
    busy, blocked = repair_s / mtbf_s, 1.0
    for lines in range(1, num_spares + 2):
        blocked = busy * blocked / (lines + busy * blocked)
    return blocked


def spares_worth_most(num_nodes: int, repair_s: float, mtbf_s: float) -> int:
    """How many spares give most training for each node there is, those that wait included.

    >>> spares_worth_most(2048, 86400, 3 * 3600), spares_worth_most(4, 86400, 3 * 3600 * 512)
    (18, 0)
    """

    def worth(num_spares: int) -> float:
        return (1 - waiting_share(num_spares, repair_s, mtbf_s)) * num_nodes / (num_nodes + num_spares)

    best = 0
    while worth(best + 1) > worth(best):
        best += 1
    return best


def _expect_positive(*numbers: float) -> None:
    if min(numbers) <= 0:
        raise ValueError(f"{min(numbers)}: intervals, saves, repairs and times between failures are above 0.")
