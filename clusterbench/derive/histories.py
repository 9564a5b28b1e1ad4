"""What became of each case: its outcomes, and the records that can be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from clusterbench.run_folder.attempts import History, why_unusable
from clusterbench.types import Observation, Outcome, Plan

Attempt = tuple[str, int, int]
"""Hash, repeat and attempt: what an outcome and its record share."""


def histories_of(
    plan: Plan, outcomes: Iterable[Outcome], observations: Iterable[Observation], problems: list[str]
) -> tuple[History, ...]:
    """One for each case of the plan; what belongs to none, is there twice or is unusable is told in ``problems``."""
    cases = {case.hash: case for case in plan.cases}
    attempts: dict[str, list[Outcome]] = defaultdict(list)
    ended: dict[Attempt, str] = {}
    wrong: set[tuple[str, int]] = set()
    for outcome in outcomes:
        if outcome.hash not in cases:
            problems.append(f"{_of('the outcome', outcome)} belongs to no case of the plan and was left out")
        elif _attempt(outcome) in ended:
            problems.append(f"{_of('the outcome', outcome)} is there twice; the second was left out")
        else:
            attempts[outcome.hash].append(outcome)
            ended[_attempt(outcome)] = outcome.status
            if outcome.status == "wrong":
                wrong.add((outcome.hash, outcome.repeat))
    whole: dict[str, dict[int, Observation]] = defaultdict(dict)
    for observation in observations:
        if observation.hash not in cases:
            problems.append(f"{_of('the record', observation)} belongs to no case of the plan and was left out")
        elif _attempt(observation) not in ended:
            problems.append(f"{_of('the record', observation)} has no outcome and was left out")
        elif ended[_attempt(observation)] != "ok" or (observation.hash, observation.repeat) in wrong:
            continue  # measured by a case whose check failed, now or in another attempt
        elif why := why_unusable(cases[observation.hash], observation):
            problems.append(f"{observation.case}, repeat {observation.repeat + 1}: {why}; it was left out")
        else:
            before = whole[observation.hash].get(observation.repeat)
            if before is None or before.attempt <= observation.attempt:
                whole[observation.hash][observation.repeat] = observation
    return tuple(
        History(
            case,
            tuple(attempts.get(hash, ())),
            tuple(observation for _, observation in sorted(whole.get(hash, {}).items())),
        )
        for hash, case in cases.items()
    )


def _attempt(record: Outcome | Observation) -> Attempt:
    return record.hash, record.repeat, record.attempt


def _of(what: str, record: Outcome | Observation) -> str:
    return f"{record.case}, repeat {record.repeat + 1}, attempt {record.attempt}: {what}"
