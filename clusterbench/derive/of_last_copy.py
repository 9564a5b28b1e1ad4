"""Cases that several copies of the package ran: what was seen of their steps is that of the last copy."""

from __future__ import annotations

from dataclasses import replace

from clusterbench.run_folder.attempts import History
from clusterbench.run_folder.passes import OWN_SECONDS
from clusterbench.types import SAMPLES, Observation, Plan

_TIMED = (SAMPLES, OWN_SECONDS.name)


def of_last_copy(history: History, plan: Plan) -> History:
    """A case with what the copy expects that ran it last, and with what that copy proved and counted.

    A step of other sources may send, hold and compute something else; of its repeats the times are left.
    """
    if not history.copies:
        return history
    *others, last = history.copies
    case = plan.case_of(history.case, last)
    if case is history.case and not others:
        return history
    own = history.copies[last]
    return History(
        case, history.outcomes, tuple(seen if seen in own else _times_of(seen) for seen in history.observations)
    )


def _times_of(seen: Observation) -> Observation:
    return replace(seen, evidence=(), passes={name: of for name, of in seen.passes.items() if name in _TIMED})
