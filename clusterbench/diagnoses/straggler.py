from __future__ import annotations

import math
from collections import defaultdict
from statistics import median

from clusterbench.cases import Reading
from clusterbench.diagnoses import Diagnosis, Finding
from clusterbench.run_folder.attempts import host_of
from clusterbench.run_folder.passes import OWN_SECONDS
from clusterbench.types import Observation

LEVEL = 0.001
MINIMUM_EFFECT = 0.05


class Straggler(Diagnosis):
    """A rank that is slowest more often than chance.

    What it looks for
    -----------------
    In each case, a rank that needs at least 5 % longer than the median rank and is the slowest in more iterations than
    equal ranks would be: a one-sided binomial test against 1 / world_size at a level of 0.001, divided by the number of
    ranks tested. Ranks that wait for each other inside an iteration take equally long, so a slow rank shows only in the
    part of a step that does not wait: where a benchmark tells it apart (fault_drill), that part is compared. Silence is
    no proof of health.

    Why it matters
    --------------
    Every synchronous step takes as long as its slowest rank: one slow GPU or host slows all the others.

    How to confirm
    --------------
    Run the matmul and device_copy benchmarks on that host alone and compare with its peers. Change the order of hosts:
    if another rank becomes the straggler, it is the place and not the device.

    What usually fixes it
    ---------------------
    Clocks and power limit of that GPU, cooling, another process on that host, ranks bound to the wrong cores or NUMA
    node, a PCIe link trained below its width. Replace or drain the host when nothing of this explains it.
    """

    def findings(self, reading: Reading) -> list[Finding]:
        cases: dict[tuple[int, str], list[str]] = defaultdict(list)
        evidence: dict[tuple[int, str], str] = {}
        for history in reading.histories:
            if history.pooled is None:
                continue
            for rank, words in _stragglers(history.pooled):
                culprit = rank, host_of(history.pooled, rank)
                cases[culprit].append(history.case.id)
                evidence.setdefault(culprit, f"{history.case.id}: {words}")
        worst_first = sorted(cases, key=lambda culprit: (-len(cases[culprit]), culprit))
        return [
            Finding(
                f"rank {rank}" + (f", host {host}" if host else ""),
                f"slowest more often than chance in {_count(len(cases[rank, host]))}",
                "warning",
                evidence[rank, host],
            )
            for rank, host in worst_first
        ]


def _stragglers(observation: Observation) -> list[tuple[int, str]]:
    """Ranks slower than chance allows, each with the figures that show it."""
    seconds = OWN_SECONDS.readable(observation) or observation.seconds
    num_ranks = len(seconds)
    if num_ranks < 2:
        return []
    totals_s = [sum(samples) for samples in seconds]
    usual_s = median(totals_s)
    suspects = [rank for rank in range(num_ranks) if totals_s[rank] >= (1 + MINIMUM_EFFECT) * usual_s]
    if not suspects:
        return []
    slowest = [samples.index(max(samples)) for samples in zip(*seconds, strict=True)]
    count = len(slowest)
    return [
        (
            rank,
            f"slowest in {slowest.count(rank)} of {count} iterations, where chance gives {count / num_ranks:.0f}; "
            f"{100 * (totals_s[rank] / usual_s - 1):.0f} % longer than the median rank",
        )
        for rank in suspects
        if binomial_tail(slowest.count(rank), count, 1 / num_ranks) < LEVEL / num_ranks
    ]


def binomial_tail(at_least: int, count: int, probability: float) -> float:
    """Probability of ``at_least`` or more successes in ``count`` independent tries.

    >>> binomial_tail(2, 2, 0.5), round(binomial_tail(9, 10, 0.5), 6)
    (0.25, 0.010742)
    """
    if at_least <= 0:
        return 1.0
    log_p, log_q = math.log(probability), math.log1p(-probability)
    return math.fsum(
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(hits + 1)
            - math.lgamma(count - hits + 1)
            + hits * log_p
            + (count - hits) * log_q
        )
        for hits in range(at_least, count + 1)
    )


def _count(cases: int) -> str:
    return "one case" if cases == 1 else f"{cases} cases"
