from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.host_facts import mapping
from clusterbench.run_folder import COPIES, noted
from clusterbench.run_folder.attempts import History
from clusterbench.run_folder.copies import copies_in_words
from clusterbench.words import few, plural


class SeveralCopies(Diagnosis):
    """A run that one copy of clusterbench began and another went on with.

    What it looks for
    -----------------
    Results of one run that were made by different sources of clusterbench: after an update or an edit '--resume' went
    on with it. Versions of benchmarks were the same, as a run with another one is refused. It is a note where each case
    is of one copy, and counts where repeats of a case are of both.

    Why it matters
    --------------
    Other sources may be another step: it sends, holds and computes something else, or launches other operators. Each
    result is held against what its own sources expect, and what was proven and counted is that of the copy that ran a
    case last; its time is that of all its repeats, and so of two programs. Cases of two copies are not compared as
    cases that compute the same.

    How to confirm
    --------------
    'copy' in outcomes.jsonl tells the sources of each attempt, and environment.json which copies there were.
    'clusterbench report' draws repeats apart.

    What usually fixes it
    ---------------------
    Start the suite again where the change has to do with what is measured. Where it has not, nothing is wrong.
    """

    subject: ClassVar[Subject] = "figures"

    def answer(self, reading: Reading) -> Answer:
        runs: dict[str, list[History]] = defaultdict(list)
        for history in reading.histories:
            runs[reading.run_of(history)].append(history)
        return Answer(tuple(finding for run, own in runs.items() for finding in _of_run(reading, run, own)))


def _of_run(reading: Reading, run: str, histories: Sequence[History]) -> Iterator[Finding]:
    cases: dict[str, list[str]] = defaultdict(list)
    for history in histories:
        for copy in history.copies:
            cases[copy].append(history.case.id)
    if len(cases) < 2:
        return
    environment: Any = mapping(reading.environment.get(run)) if run else reading.environment
    versions = noted(environment, COPIES)
    both = [history.case.id for history in histories if len(history.copies) > 1]
    made = [
        f"{copies_in_words([copy], versions)} made results of {plural(len(of), 'case')}" for copy, of in cases.items()
    ]
    mixed = f"; times of {plural(len(both), 'case')} are of both: {few(both)}" if both else "; no case is of both"
    yield Finding(
        run or "this run",
        " and ".join(made) + mixed,
        "warning" if both else "note",
        brief=f"results of {plural(len(cases), 'copy', 'copies')} of clusterbench",
    )
