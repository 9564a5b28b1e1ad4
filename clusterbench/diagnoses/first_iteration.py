from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

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
        judged = {history.case.id: repeats for history in reading.histories if (repeats := _repeats(history))}
        slow = {
            case: [repeat.first for repeat in repeats]
            for case, repeats in judged.items()
            if _are_firsts_slow(repeats, len(judged))
        }
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


class _Repeat(NamedTuple):
    """Its first iteration over its median, and how many of the others are above the limit."""

    first: float
    slow_others: int
    num_others: int


def _repeats(history: History) -> list[_Repeat]:
    """Those of a case; none where there are too few, or too few iterations."""
    if len(history.observations) < FEWEST_REPEATS or not history.ran_here:
        return []
    repeats = [times for seen in history.observations if len(times := iteration_times(seen)) >= FEWEST_ITERATIONS]
    return [_repeat(times) for times in repeats] if len(repeats) >= FEWEST_REPEATS else []


def _repeat(times_s: Sequence[float]) -> _Repeat:
    middle_s = median(times_s)
    slow_others = sum(time_s / middle_s > MOST_OVER_MEDIAN for time_s in times_s[1:])
    return _Repeat(times_s[0] / middle_s, slow_others, len(times_s) - 1)


def _are_firsts_slow(repeats: Sequence[_Repeat], num_cases: int) -> bool:
    """Whether the first iteration of each repeat is slow, and the others are not."""
    others = sum(repeat.slow_others for repeat in repeats) / sum(repeat.num_others for repeat in repeats)
    by_chance = others ** len(repeats) * num_cases
    return by_chance <= LEVEL and min(repeat.first for repeat in repeats) > MOST_OVER_MEDIAN
