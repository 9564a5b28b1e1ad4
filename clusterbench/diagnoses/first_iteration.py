from __future__ import annotations

from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.formulas.statistics import median
from clusterbench.run_folder.attempts import History, iteration_times
from clusterbench.words import plural

MOST_OVER_MEDIAN = 1.5
FEWEST_REPEATS, FEWEST_ITERATIONS = 2, 5
LEVEL = 0.01
"""Chance at which a first iteration would be blamed that is like the others, for all cases of a run together."""


class FirstIteration(Diagnosis):
    """Cases whose first timed iteration is slow in every repeat: the warm-up was too short.

    What it looks for
    -----------------
    A first iteration above 1.5 times the median of its repeat, in each of at least two repeats of five iterations or
    more. What happens in one repeat is noise, and so is what happens in all of them where so many of the other
    iterations are above that limit that it would in some case of 1 of 100 runs. Iterations of the warm-up are not
    recorded, and so what the very first call costs is not known.

    Why it matters
    --------------
    The median is safe, but highest values and the spread are those of a start: connections, kernels that are compiled
    and caches that are filled. With few iterations it also makes a case seem unsteady.

    How to confirm
    --------------
    Run the case with twice the warmup, and look whether the first iteration comes down. The limit is that of
    nccl-tests' script for the analysis of its results.

    What usually fixes it
    ---------------------
    A larger warmup in the suite.
    """

    subject: ClassVar[Subject] = "figures"

    def answer(self, reading: Reading) -> Answer:
        judged = {history.case.id: repeats for history in reading.histories if (repeats := _ratios(history))}
        slow = {case: firsts for case, repeats in judged.items() if (firsts := _slow_firsts(repeats, len(judged)))}
        findings = tuple(
            Finding(
                case,
                f"the first timed iteration takes {min(ratios):.1f} to {max(ratios):.1f} times the median",
                "note",
                f"in each of {plural(len(ratios), 'repeat')}",
                brief=f"first iteration {max(ratios):.1f} times the median",
            )
            for case, ratios in slow.items()
        )
        return Answer(
            findings,
            (f"first iterations of {plural(len(judged), 'case')} are like the others",) if judged and not slow else (),
        )


def _ratios(history: History) -> list[list[float]]:
    """Iterations over their median, of each repeat; none where there are too few of either."""
    if len(history.observations) < FEWEST_REPEATS or not history.ran_here:
        return []
    repeats = [times for seen in history.observations if len(times := iteration_times(seen)) >= FEWEST_ITERATIONS]
    return [[time / median(times) for time in times] for times in repeats] if len(repeats) >= FEWEST_REPEATS else []


def _slow_firsts(repeats: list[list[float]], num_cases: int) -> list[float]:
    """The first iteration of each repeat, if all are slow and the others are not."""
    firsts = [ratios[0] for ratios in repeats]
    others = [ratio > MOST_OVER_MEDIAN for ratios in repeats for ratio in ratios[1:]]
    by_chance = (sum(others) / len(others)) ** len(repeats) * num_cases
    return firsts if min(firsts) > MOST_OVER_MEDIAN and by_chance <= LEVEL else []
