"""A list that is run again and again for a time: which round comes next, and how much of the time is over."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clusterbench.types import MOST_REPEATS, Case, Outcome, Plan
from clusterbench.units import duration


def spent_s(outcomes: Sequence[Outcome]) -> float:
    """What all cases took together, whoever ran them: a run that is resumed goes on where it was."""
    return sum(outcome.elapsed_s for outcome in outcomes)


def next_round(plan: Plan, outcomes: Sequence[Outcome]) -> tuple[int, list[Case]]:
    """The repeat that comes next of a plan that is run for a time, and its cases: none once that time is over.

    Without cases that never ended well: what they came to is known.
    """
    repeat = max([plan.repeats, *(outcome.repeat + 1 for outcome in outcomes)])
    if spent_s(outcomes) >= plan.for_s or repeat >= MOST_REPEATS:
        return repeat, []
    good = {outcome.hash for outcome in outcomes if outcome.status == "ok"}
    return repeat, [case for case in plan.cases if case.hash in good]


def cut_short(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    """``run for 0:08 of 0:20`` of a run that ended before its time was over; empty of any other."""
    _, cases = next_round(plan, outcomes)
    return f"run for {so_far(spent_s(outcomes), plan.for_s)}" if cases else ""


def so_far(time_s: float, for_s: float) -> str:
    """How much of a time is over, in whole seconds: it is over only where that much is said.

    >>> so_far(8.9, 20.0)
    '0:08 of 0:20'
    """
    return f"{duration(math.floor(time_s))} of {duration(for_s)}"
