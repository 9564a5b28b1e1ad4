from __future__ import annotations

from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.run_folder.attempts import FAULTS, History
from clusterbench.types import Outcome
from clusterbench.words import plural

_WORDS = {
    "wrong": "computed a wrong result and was not timed",
    "failed": "failed",
    "timeout": "made no progress and was stopped",
    "out_of_memory": "ran out of memory",
}


class FailedCase(Diagnosis):
    """Cases that were to be measured and were not.

    What it looks for
    -----------------
    Cases that ended as wrong, failed, timeout or out_of_memory although the suite did not expect it, and attempts that
    failed before a later one succeeded.

    Why it matters
    --------------
    A case without a figure says nothing about speed, and a comparison that leaves it out flatters whatever is left. A
    failure that went away when tried again is still a failure of the machine or of the program.

    How to confirm
    --------------
    Open the log of the rank that is named: the first error in it counts, the other ranks mostly report that a peer is
    gone. Run the case alone with --resume; if it fails on another host order too, it is not the host.

    What usually fixes it
    ---------------------
    out_of_memory: a smaller micro_batch_size, recomputation, more tensor parallelism or ZeRO; write expect:
    [out_of_memory] where that is the answer sought. timeout: the ranks named as behind, their host and their link.
    wrong: do not use the figure's neighbours either before the cause is known. failed: what the log says.
    """

    subject: ClassVar[Subject] = "cases"

    def answer(self, reading: Reading) -> Answer:
        lost = [_finding(history, fault) for history in reading.histories for fault in history.faults]
        later = [finding for history in reading.histories for finding in _passed_later(history)]
        ended = sum(history.outcome is not None for history in reading.histories)
        # Of an import nothing was asked: what crashed in its source is no fault, and no health either.
        as_asked = ended and not lost and not reading.is_imported
        return Answer((*lost, *later), (f"{plural(ended, 'case')} ended as asked",) if as_asked else ())


def _finding(history: History, fault: Outcome) -> Finding:
    what = _WORDS[fault.status]
    if history.num_repeats > 1:
        measured = len(history.observations)
        what += f" in one repeat; {measured} of {history.num_repeats} repeats were measured"
    return Finding(_where(fault), what, "error", fault.reason or "no reason was recorded", fault.log)


def _passed_later(history: History) -> list[Finding]:
    settled = {(outcome.repeat, outcome.status) for outcome in history.deciding}
    return [
        Finding(
            _where(outcome),
            f"{_WORDS[outcome.status]} at attempt {outcome.attempt}, and ended well when tried again",
            "warning",
            outcome.reason or "no reason was recorded",
            outcome.log,
        )
        for outcome in history.outcomes
        if outcome.status in FAULTS and (outcome.repeat, "ok") in settled
    ]


def _where(outcome: Outcome) -> str:
    parts = [outcome.case]
    if outcome.rank is not None:
        parts.append(f"rank {outcome.rank}")
    if outcome.host:
        parts.append(f"host {outcome.host}")
    if outcome.phase:
        parts.append(f"after phase '{outcome.phase}'")
    return ", ".join(parts)
