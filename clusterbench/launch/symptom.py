"""How a case ended that did not end well, so that two runs of it can be compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from clusterbench.cases import Reading
from clusterbench.diagnoses import diagnoses
from clusterbench.launch.culprit import says_that_a_peer_is_gone
from clusterbench.run_folder.attempts import FAULTS
from clusterbench.types import Outcome

LOST_HOST = "a host was lost"
NO_END = "ranks waited for each other, or lost each other"
NO_OUTCOME = "no outcome"


@dataclass(frozen=True)
class Symptom:
    """``kind`` is alike in two runs that failed in the same way; ``sentence`` is how this one ended."""

    kind: str
    sentence: str


def symptom_of(reading: Reading, case: str, hosts: Collection[str]) -> Symptom | None:
    """How the case of this name ended, the last repeat that failed before others; None where nothing is amiss.

    A case that was measured and misses a floor of its suite has failed, too. ``hosts`` are names that reasons may have:
    the same for all runs that are compared.
    """
    history = next(history for history in reading.histories if history.case.id == case)
    if not history.deciding:
        return Symptom(NO_OUTCOME, "it has no outcome")
    if faults := [outcome for outcome in history.deciding if outcome.status in FAULTS]:
        return Symptom(_kind(faults[-1], hosts), _sentence(faults[-1]))
    if history.pooled is None:
        return Symptom(history.status, _sentence(history.deciding[-1]))
    return _missed_floor(reading, case)


def _missed_floor(reading: Reading, case: str) -> Symptom | None:
    for finding in diagnoses()["floor"]().answer(reading).findings:
        name, _, metric = finding.where.rpartition(", ")
        if name == case:
            return Symptom(f"{metric} misses its floor", f"{metric}: {finding.what}")
    return None


def _kind(outcome: Outcome, hosts: Collection[str]) -> str:
    """Rank, host and numbers differ from run to run, and so does whether a wait ends by itself."""
    if outcome.lost_hosts:
        return LOST_HOST
    if outcome.status == "timeout" or says_that_a_peer_is_gone(outcome.reason):
        return NO_END
    if outcome.status != "failed":
        return outcome.status
    said = re.sub(r"^ranks? [\d, -]+ \(hosts? [^)]*\):? ?|\(ranks? .*\)$|\(host [^)]*\)", "", _first_line(outcome))
    for host in sorted(hosts, key=len, reverse=True):
        said = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "HOST", said)
    return f"failed: {re.sub(r'[0-9]+', 'N', said).strip()}"


def _sentence(outcome: Outcome) -> str:
    return f"{outcome.status}: {_first_line(outcome)}"


def _first_line(outcome: Outcome) -> str:
    return next(iter(outcome.reason.splitlines()), "")
