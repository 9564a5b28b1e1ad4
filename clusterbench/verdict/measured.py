"""What was measured, of what should have been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterbench.cases import Reading
from clusterbench.cases.steadiness import TOO_FEW
from clusterbench.diagnoses import Answer, diagnoses, in_words
from clusterbench.diagnoses.unstable import cores_shared
from clusterbench.measured.disturbed import DISTURBED
from clusterbench.run_folder.attempts import FAULTS, NOT_RUN, History
from clusterbench.verdict.statement import ALWAYS_FAILS, MOST_NAMED, WRONG, Statement, Tone
from clusterbench.words import few, plural

ENDS = {"out_of_memory": "out of memory", "timeout": "timed out", NOT_RUN: "not run yet"}


def measured_statement(reading: Reading, answers: Mapping[str, Answer]) -> Statement:
    histories = reading.histories
    have_figure = sum(history.pooled is not None for history in histories)
    wanted = sum(history.status != "skipped" for history in histories)
    wrong = [*_wrong_cases(histories), *_void(answers)]
    # Cases, as all numbers beside it: one that fails in each of three repeats is one.
    ended = (status for history in histories for status in dict.fromkeys(fault.status for fault in history.faults))
    faults = Counter(str(status) for status in ended if status != "wrong")
    waiting = sum(history.status == NOT_RUN for history in histories)
    partly = sum(not history.is_complete and history.status != NOT_RUN for history in histories)
    unsteady = len(reading.unsteady | reading.unsettled)
    is_incomplete = bool(faults or waiting or partly or reading.problems or reading.cut_short)
    missing = [*_missing(faults, waiting, partly, len(reading.problems)), *reading.cut_short]
    parts = [
        f"{have_figure:,} of {plural(wanted, 'case')}{_not_measured_here(reading)}" if histories else "no cases",
        *([f"wrong: {few(wrong, MOST_NAMED)}"] if wrong else []),
        *_disturbed(reading),
        *missing,
        *([] if reading.is_imported else _as_expected(histories)),
        *_crashed_in_the_source(histories if reading.is_imported else ()),
        *_set_aside(reading),
        *_unsteady(reading, unsteady, have_figure),
    ]
    word, tone = _measured_word(bool(wrong), is_incomplete, reading, have_figure)
    conditions = (
        *([ALWAYS_FAILS] if wrong else []),
        *(["incomplete"] if is_incomplete else []),
        *(["unsteady"] if unsteady else []),
    )
    counts = {"cases": wanted, "measured": have_figure, "unsteady": unsteady}
    return Statement("measured", word, "; ".join(parts), tone, conditions, counts, {"wrong": wrong, "missing": missing})


def _not_measured_here(reading: Reading) -> str:
    """Of several runs, of which some measured and others did not."""
    number_of = Counter(history.case.benchmark for history in reading.histories if history.pooled is not None)
    others = {"imported": "imported", "dry_step": "worked out by a dry run"}
    mixed = not (reading.is_imported or reading.is_dry)
    return "".join(
        f", {number_of[name]:,} of them {words}" for name, words in others.items() if mixed and number_of[name]
    )


def _measured_word(is_wrong: bool, is_incomplete: bool, reading: Reading, have_figure: int) -> tuple[str, Tone]:
    if is_wrong:
        return WRONG
    if is_incomplete:
        return "INCOMPLETE", "bad"
    if reading.is_imported:
        return "IMPORTED", "imported"
    if reading.is_dry:
        return "DRY RUN", "imported"
    return ("COMPLETE", "good") if have_figure else ("NOTHING MEASURED", "open")


def _wrong_cases(histories: Iterable[History]) -> Iterator[str]:
    for history in histories:
        if any(fault.status == "wrong" for fault in history.faults):
            yield history.case.id


def _void(answers: Mapping[str, Answer]) -> Iterator[str]:
    """The first error of each diagnosis of cases beside those that ended badly: figures that mean nothing."""
    for name, answer in answers.items():
        errors = [finding for finding in answer.findings if finding.severity == "error"]
        if errors and diagnoses()[name].subject == "cases" and name != "failed_case":
            more = f" and {len(errors) - 1:,} more" * (len(errors) > 1)
            yield f"{in_words(name)}: {errors[0].where}: {errors[0].what}{more}"


def _disturbed(reading: Reading) -> Iterator[str]:
    """Of how many cases figures are void for what the machine did meanwhile; which part of it did stands there."""
    cases = {row.case for row in reading.rows if row.value is None and row.basis.startswith(DISTURBED)}
    if cases:
        yield f"figures of {len(cases):,} are void"


def _missing(faults: Mapping[str, int], waiting: int, partly: int, problems: int) -> list[str]:
    missing = [f"{count:,} {ENDS.get(status, status)}" for status, count in faults.items()]
    if waiting:
        missing.append(f"{waiting:,} not run yet ('clusterbench run --resume' goes on with them)")
    if partly:
        missing.append(f"{partly:,} {'lacks' if partly == 1 else 'lack'} a repeat or a whole record")
    if problems:
        missing.append(f"{plural(problems, 'line')} could not be read")
    return missing


def _as_expected(histories: Iterable[History]) -> Iterator[str]:
    ends = Counter(history.status for history in histories if history.status in history.case.expected_outcomes)
    yield from (f"{count:,} {ENDS.get(status, status)} as expected" for status, count in ends.items())


def _crashed_in_the_source(histories: Sequence[History]) -> Iterator[str]:
    crashed = sum(history.status in FAULTS for history in histories)
    if crashed:
        yield f"{crashed:,} crashed in the source ({100 * crashed / len(histories):.0f} %)"


def _set_aside(reading: Reading) -> Iterator[str]:
    skipped = sum(history.status == "skipped" for history in reading.histories)
    if skipped:
        yield f"{skipped:,} skipped"
    if reading.plan.refusals:
        yield f"{len(reading.plan.refusals):,} refused"


def _unsteady(reading: Reading, unsteady: int, have_figure: int) -> Iterator[str]:
    if unsteady:
        shared = cores_shared(reading)
        why = shared or (f"{len(reading.unsettled):,} not settled" if reading.unsettled else "")
        yield f"{unsteady:,} of {have_figure:,} unsteady" + (f" ({why})" if why else "")
    if too_short := len(reading.too_short):
        yield f"{too_short:,} with {TOO_FEW} iterations or fewer, too few to tell how steady"
