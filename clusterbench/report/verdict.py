"""Whether a run did what it was to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clusterbench.cases import Reading
from clusterbench.diagnoses import Finding
from clusterbench.run_folder.attempts import NOT_RUN


@dataclass(frozen=True)
class Verdict:
    """One word, the sentence behind it, and what the command line ends with."""

    word: Literal["PASS", "FAIL", "INCOMPLETE"]
    sentence: str
    exit_code: int


def verdict(reading: Reading, findings: Mapping[str, Sequence[Finding]]) -> Verdict:
    """Fails closed: a run passes only if every case that should have been measured was, and was found faultless.

    Skipped cases, refusals and outcomes that the suite expected change nothing, but a run that measured nothing at all
    does not pass either.
    """
    errors = sum(finding.severity == "error" for of_diagnosis in findings.values() for finding in of_diagnosis)
    measured = sum(history.pooled is not None for history in reading.histories)
    wanted = sum(history.status != "skipped" for history in reading.histories)
    if errors:
        faulty = sum(bool(history.faults) for history in reading.histories)
        what = _plural(errors, "error was found", "errors were found")
        ended = f"{what}; {measured:,} of {_cases(wanted)} were measured, {faulty:,} ended badly."
        return Verdict("FAIL", " ".join([ended, *_errors_of_others(findings)]), 1)
    open_cases = [history for history in reading.histories if not history.is_complete]
    if open_cases or reading.problems:
        return Verdict("INCOMPLETE", _what_is_left(reading, measured, wanted), 1)
    if not measured:
        return Verdict("INCOMPLETE", f"Nothing was measured: {_tally(reading)}.", 0)
    sentence = "Every case that should have been measured was, and no error was found"
    return Verdict("PASS", f"{sentence}: {_tally(reading)}.", 0)


def _errors_of_others(findings: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    """The first error of each diagnosis beside the cases that ended badly, which are counted."""
    for name, of_diagnosis in findings.items():
        errors = [finding for finding in of_diagnosis if finding.severity == "error"]
        if errors and name != "failed_case":
            more = f", and {len(errors) - 1:,} more" * (len(errors) > 1)
            yield f"{name}: {errors[0].where}: {errors[0].what}{more}."


def _what_is_left(reading: Reading, measured: int, wanted: int) -> str:
    waiting = sum(history.status == NOT_RUN for history in reading.histories)
    parts = [f"{measured:,} of {_cases(wanted)} have a figure"]
    if waiting:
        parts.append(f"{waiting:,} not run yet")
    partly = sum(not history.is_complete and history.status != NOT_RUN for history in reading.histories)
    if partly:
        parts.append(f"{partly:,} lack a repeat or a whole record")
    if reading.problems:
        parts.append(_plural(len(reading.problems), "line could not be read", "lines could not be read"))
    return "; ".join(parts) + "."


def _tally(reading: Reading) -> str:
    counts = Counter(
        f"{history.status} as expected" if history.status in history.case.expected_outcomes else history.status
        for history in reading.histories
    )
    counts["refused"] = len(reading.plan.refusals)
    return tally(counts)


def tally(counts: Mapping[str, int]) -> str:
    """How many cases ended how, in words.

    >>> tally({"ok": 5, "out_of_memory": 1, "refused": 0})
    '5 measured, 1 out of memory'
    """
    words = {"ok": "measured", NOT_RUN: "not run yet"}
    return _join(
        f"{count:,} {words.get(status, status.replace('_', ' '))}" for status, count in counts.items() if count
    )


def _join(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "no cases"


def _cases(count: int) -> str:
    return _plural(count, "case", "cases")


def _plural(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"
