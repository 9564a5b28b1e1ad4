from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import ClassVar

from clusterbench.benchmarks.train_step import formulas_of
from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged, Subject
from clusterbench.expected.memory import DEVIATION, is_unverified
from clusterbench.job.passes import MEMORY
from clusterbench.measured.memory import deviations, evidence
from clusterbench.run_folder.attempts import History
from clusterbench.types import Severity
from clusterbench.words import few, plural


class MemoryMismatch(Diagnosis):
    """Steps that hold more or less than their formula says.

    What it looks for
    -----------------
    Cases in which parameters, gradients, optimizer state, activations or all that is held at one moment, followed
    storage by storage in one untimed step, are further from the formula than it allows: states 2 %, activations 5 %,
    the total 3 %, and what the formula itself says of buffers and routers. Each stage of a pipeline is judged by its
    fullest rank. The tracker knows nothing of the formula.

    Why it matters
    --------------
    A rank that keeps states that should be shared out, gradients twice, or activations that should have been computed
    again runs out of memory on a larger model than planned, and shows figures of another configuration. The figures of
    memory of such a case are void, and the run fails. On a GPU it is a warning: the formulas
    were held against one H200 alone.

    How to confirm
    --------------
    Compare the ranks in ``observations.jsonl`` (``passes``, ``memory``) with each other and with a case without a
    finding. A factor of the number of ranks is something that is not shared out; a factor of two something that is
    there twice.

    What usually fixes it
    ---------------------
    A sharding that does not reach every weight, gradients kept beside their buckets, recomputation that is not around
    every layer, a schedule that lets more micro-batches in than it should, a reference to a tensor of an earlier
    micro-batch.
    """

    subject: ClassVar[Subject] = "cases"

    def answer(self, reading: Reading) -> Answer:
        rows = [row for row in reading.rows_of(DEVIATION) if row.value is not None]
        beyond = {row.case for row in rows if row.value is not None and row.value > (row.expected or 0.0)}
        findings = tuple(
            finding for history in reading.histories if history.case.id in beyond for finding in _of(history)
        )
        healthy = ("held bytes are those of the formulas",) if rows and not findings else ()
        return Answer(findings, healthy, tuple(_not_judged(reading, {row.case for row in rows})))


def _of(history: History) -> Iterator[Finding]:
    case, seen = history.case, history.pooled
    assert seen is not None, "there is a figure of it"
    severity: Severity = "warning" if is_unverified(case) else "error"
    for each in deviations(case, formulas_of(case), MEMORY.of(seen)):
        if each.is_beyond:
            where, what = f"{case.id}, rank {each.rank}", f"{each.what}: {each.by}"
            yield Finding(where, what, severity, evidence(each), case=case.id)


def _not_judged(reading: Reading, judged: set[str]) -> Iterator[NotJudged]:
    """Cases of which some categories have a band and others none, by the reason."""
    cases: dict[tuple[str, str], list[str]] = defaultdict(list)
    for history in reading.histories:
        case = history.case
        if case.id in judged:
            for category, why in formulas_of(case).not_predicted.items():
                cases[category, why].append(case.id)
    for (category, why), some in cases.items():
        yield NotJudged(f"{category} of {plural(len(some), 'case')}: {few(some, 3)}", why, "a formula for it")
