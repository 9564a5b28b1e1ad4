"""What a run shows, in three statements: what was measured, what was proven, and how the machine is.

Each stands by itself. A run that measured everything may have done so on a sick machine, and on a healthy one it may
have proven nothing. ``docs/verdict.md`` has the table of words, conditions and exit codes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

from clusterbench.cases import Reading
from clusterbench.cases.steadiness import TOO_FEW
from clusterbench.diagnoses import Answer, Finding, NotJudged, diagnoses, in_words
from clusterbench.diagnoses.unstable import cores_shared
from clusterbench.measured.agreement import disputed_cases
from clusterbench.measured.nodes import NODE_STEP
from clusterbench.measured.speed import LONE_RANK
from clusterbench.run_folder.attempts import FAULTS, NOT_RUN, History
from clusterbench.types import FAIL_ON, FAIL_ON_BY_DEFAULT
from clusterbench.words import few, plural

Tone = Literal["good", "suspect", "bad", "open", "imported"]
"""``open``: nothing is wrong, and something is not known."""

ALWAYS_FAILS = "wrong"
_WRONG: tuple[str, Tone] = ("WRONG", "bad")
_NOT_PROVEN: tuple[str, Tone] = ("NOT PROVEN", "open")
_STEPS = ("train_step", NODE_STEP, LONE_RANK)
_NAMED = 3  # culprits, mistakes or parts in a sentence
_ENDS = {"out_of_memory": "out of memory", "timeout": "timed out", NOT_RUN: "not run yet"}


@dataclass(frozen=True)
class Statement:
    """One of the three: a word and the sentence behind it.

    ``conditions`` are those of :data:`clusterbench.types.FAIL_ON` that hold, and ``wrong``. ``counts`` are its numbers,
    ``parts`` its lists of sentences, by name: what a program reads.
    """

    about: Literal["measured", "proven", "machine"]
    word: str
    sentence: str
    tone: Tone
    conditions: tuple[str, ...] = ()
    counts: Mapping[str, int] | None = None
    parts: Mapping[str, Sequence[str]] | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "word": self.word.lower(),
            "sentence": self.sentence,
            **(self.counts or {}),
            **{name: list(sentences) for name, sentences in (self.parts or {}).items()},
        }


@dataclass(frozen=True)
class Verdict:
    """The three statements, and on what the exit code depends; a wrong result counts always."""

    measured: Statement
    proven: Statement
    machine: Statement
    fail_on: tuple[str, ...]

    @property
    def statements(self) -> tuple[Statement, Statement, Statement]:
        return self.measured, self.proven, self.machine

    @property
    def conditions(self) -> tuple[str, ...]:
        """All that hold, whether they count or not."""
        held = {condition for statement in self.statements for condition in statement.conditions}
        return tuple(condition for condition in (ALWAYS_FAILS, *FAIL_ON) if condition in held)

    @property
    def failing(self) -> tuple[str, ...]:
        """Those that count."""
        return tuple(name for name in self.conditions if name == ALWAYS_FAILS or name in self.fail_on)

    @property
    def exit_code(self) -> int:
        return 1 if self.failing else 0

    @property
    def tone(self) -> Tone:
        """That of the statement that matters most."""
        order: tuple[Tone, ...] = ("bad", "suspect", "imported", "open", "good")
        return min((statement.tone for statement in self.statements), key=order.index)

    @property
    def words(self) -> str:
        """``COMPLETE, NOT PROVEN, SUSPECT``."""
        return ", ".join(statement.word for statement in self.statements)

    @property
    def ends_with(self) -> str:
        """``exit code 1: suspect``, and what else holds and does not count."""
        others = [name for name in self.conditions if name not in self.failing]
        passing = f"; {few(others, len(others))} {'does' if len(others) == 1 else 'do'} not count" if others else ""
        return f"exit code {self.exit_code}" + (f": {', '.join(self.failing)}" if self.failing else "") + passing

    def text(self) -> str:
        """For a terminal: a line for each statement, and one for the exit code."""
        width = max(len(statement.word) for statement in self.statements)
        lines = [f"{said.about:<8}  {said.word:<{width}}  {said.sentence}" for said in self.statements]
        return "\n".join([*lines, self.ends_with])

    def as_json(self) -> str:
        """What ``verdict.json`` holds."""
        statements = {statement.about: statement.as_json() for statement in self.statements}
        about = {"fail_on": [*self.fail_on], "failing": [*self.failing], "conditions": [*self.conditions]}
        return json.dumps({**statements, **about, "exit_code": self.exit_code}, indent=1) + "\n"


def verdict(reading: Reading, answers: Mapping[str, Answer], fail_on: Sequence[str] | None = None) -> Verdict:
    """The verdict on a run.

    Parameters
    ----------
    answers
        Of every diagnosis, see :func:`clusterbench.diagnoses.examine`.
    fail_on
        Conditions that make the exit code 1; by default ``incomplete`` and ``suspect``, and what the suite adds.
    """
    if fail_on is None:
        fail_on = [name for name in FAIL_ON if name in FAIL_ON_BY_DEFAULT or name in reading.plan.fail_on]
    return Verdict(_measured(reading, answers), _proven(reading), _machine(reading, answers), tuple(fail_on))


# What was measured


def _measured(reading: Reading, answers: Mapping[str, Answer]) -> Statement:
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
    few_samples = sum(history.pooled is not None and len(history.pooled.seconds[0]) <= TOO_FEW for history in histories)
    missing = [*_missing(faults, waiting, partly, len(reading.problems)), *reading.cut_short]
    parts = [
        f"{have_figure:,} of {plural(wanted, 'case')}" if histories else "no cases",
        *([f"wrong: {few(wrong, _NAMED)}"] if wrong else []),
        *missing,
        *([] if reading.is_imported else _as_expected(histories)),
        *_crashed_in_the_source(histories if reading.is_imported else ()),
        *_set_aside(reading),
        *_unsteady(reading, unsteady, have_figure, few_samples),
    ]
    word, tone = _measured_word(bool(wrong), is_incomplete, reading, have_figure)
    conditions = (
        *([ALWAYS_FAILS] if wrong else []),
        *(["incomplete"] if is_incomplete else []),
        *(["unsteady"] if unsteady else []),
    )
    counts = {"cases": wanted, "measured": have_figure, "unsteady": unsteady}
    return Statement("measured", word, "; ".join(parts), tone, conditions, counts, {"wrong": wrong, "missing": missing})


def _measured_word(is_wrong: bool, is_incomplete: bool, reading: Reading, have_figure: int) -> tuple[str, Tone]:
    if is_wrong:
        return _WRONG
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
            yield f"{name}: {errors[0].where}: {errors[0].what}{more}"


def _missing(faults: Mapping[str, int], waiting: int, partly: int, problems: int) -> list[str]:
    missing = [f"{count:,} {_ENDS.get(status, status)}" for status, count in faults.items()]
    if waiting:
        missing.append(f"{waiting:,} not run yet")
    if partly:
        missing.append(f"{partly:,} lack a repeat or a whole record")
    if problems:
        missing.append(f"{plural(problems, 'line')} could not be read")
    return missing


def _as_expected(histories: Iterable[History]) -> Iterator[str]:
    ends = Counter(history.status for history in histories if history.status in history.case.expected_outcomes)
    yield from (f"{count:,} {_ENDS.get(status, status)} as expected" for status, count in ends.items())


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


def _unsteady(reading: Reading, unsteady: int, have_figure: int, few_samples: int) -> Iterator[str]:
    if unsteady:
        shared = cores_shared(reading)
        why = shared or (f"{len(reading.unsettled):,} not settled" if reading.unsettled else "")
        yield f"{unsteady:,} of {have_figure:,} unsteady" + (f" ({why})" if why else "")
    if few_samples and reading.ran_here:
        yield f"{few_samples:,} with {TOO_FEW} iterations or fewer, too few to tell how steady"


# What was proven


def _proven(reading: Reading) -> Statement:
    """Training cases whose step was held against one rank before it was timed; no other case proves anything of a step.

    What makes a case unproven is said by :func:`_why_not_proven` alone.
    """
    trained = [history for history in reading.histories if history.case.benchmark in _STEPS]
    wrong = [history.case.id for history in trained if any(fault.status == "wrong" for fault in history.faults)]
    measured = [history for history in trained if history.pooled is not None and history.case.id not in wrong]
    num_judged = len(measured) + len(wrong)
    reasons = Counter(unproven_steps(reading, measured).values())
    proven = len(measured) - sum(reasons.values())
    counts = {"training_cases": num_judged, "proven": proven}
    unproven = [f"{count:,} {why}" for why, count in reasons.items()]
    parts = {"not_proven": unproven, "wrong": wrong}
    if not measured:
        why = _nothing_to_prove(reading) if not wrong else f"wrong: {few(wrong, _NAMED)}"
        word, tone = _WRONG if wrong else _NOT_PROVEN
        return Statement("proven", word, why, tone, ("not-proven",), counts, {**parts, "not_proven": [why]})
    sentence = f"{proven:,} of {plural(num_judged, 'training case')} held against one rank before the clock started"
    sentence += _cost(reading, measured)
    if unproven:
        sentence += f"; not proven: {', '.join(unproven)}"
    if wrong:
        return Statement(
            "proven", "WRONG", f"{sentence}; wrong: {few(wrong, _NAMED)}", "bad", ("not-proven",), counts, parts
        )
    if unproven:
        return Statement("proven", "NOT PROVEN", sentence, "open", ("not-proven",), counts, parts)
    return Statement("proven", "PROVEN", sentence, "good", (), counts, parts)


def unproven_steps(reading: Reading, measured: Iterable[History]) -> dict[str, str]:
    """Training cases of which nothing is known of whether they computed what one rank computes, by id, with why."""
    disputed = disputed_cases(reading.rows_of("agreement"))
    checked = {
        row.case
        for metric, rows in reading.by_metric.items()
        if metric.startswith("parity_")
        for row in rows
        if row.value is not None
    }
    trained = [history for history in measured if history.case.benchmark in _STEPS]
    return {history.case.id: why for history in trained if (why := _why_not_proven(history, checked, disputed))}


def _cost(reading: Reading, trained: Sequence[History]) -> str:
    """What proving took, of all the time of the cases that were proven."""
    proving_s = sum(row.value or 0.0 for row in reading.rows_of("proof_time"))
    in_all_s = sum(outcome.elapsed_s for history in trained for outcome in history.outcomes)
    return f" ({proving_s:.1f} s of {in_all_s:.1f} s)" if proving_s else ""


def _why_not_proven(history: History, checked: Set[str], disputed: Set[str]) -> str:
    """Why nothing is known of whether a case computed what one rank computes; empty where it was checked."""
    if history.case.benchmark == LONE_RANK:
        return "with communication: fake (one rank alone, nothing sent)"
    if not history.case.point.get("parity", True):
        return "with parity: false"
    if history.case.id not in checked:
        return "without a record of the check"
    if not _is_wholly_checked(history):
        return "of whose check a rank or a comparison is not in the record"
    if history.case.id in disputed:
        return "whose loss or norm differs from a case that should compute the same, and no case on one rank decides"
    return ""


def _is_wholly_checked(history: History) -> bool:
    """Whether each rank has every comparison that the plan gives a tolerance: all of them get one answer."""
    asked = [key for key in history.case.expected if key.startswith("parity_")]
    evidence = history.pooled.evidence if history.pooled else ()
    return not asked or (bool(evidence) and all(key in of_rank for of_rank in evidence for key in asked))


def _nothing_to_prove(reading: Reading) -> str:
    if not any(history.pooled is not None for history in reading.histories):
        return "nothing was measured"
    if reading.is_imported:
        return "figures were taken over; whatever their source proved is not in them"
    if reading.is_dry:
        return "nothing was computed: a run on a machine holds each step against one rank"
    return "no case trains: a probe checks its own result and proves nothing of a training step"


# How the machine is


def _machine(reading: Reading, answers: Mapping[str, Answer]) -> Statement:
    own = {name: answer for name, answer in answers.items() if diagnoses()[name].subject == "machine"}
    if reading.is_imported:  # what of it a run with more tools could judge does not help it
        own = {name: replace(answer, not_judged=()) for name, answer in own.items()}
    suspects = [title for name, answer in own.items() for title in _titles(name, answer.findings)]
    healthy = [sentence for answer in own.values() for sentence in answer.healthy]
    unjudged = [part for answer in own.values() for part in answer.not_judged]
    not_judged, brief = [part.sentence for part in unjudged], _by_what_it_takes(unjudged)
    if not (suspects or healthy or not_judged):
        brief = not_judged = [_nothing_to_judge(reading)]
    parts = {"suspects": suspects, "healthy": healthy, "not_judged": not_judged}
    conditions = (*(["suspect"] if suspects else []), *(["not-judged"] if not_judged else []))
    in_order, unknown = f"healthy: {_first(healthy)}", f"not judged: {_first(brief)}"
    if suspects:
        sentence = "; ".join([_first(suspects), *([unknown] if not_judged else [])])
        return Statement("machine", "SUSPECT", sentence, "suspect", conditions, None, parts)
    if not_judged:
        sentence = "; ".join([_first(brief), *([in_order] if healthy else [])])
        return Statement("machine", "NOT JUDGED", sentence, "open", conditions, None, parts)
    return Statement("machine", "HEALTHY", _first(healthy), "good", (), None, parts)


def _titles(name: str, findings: Iterable[Finding]) -> list[str]:
    """What a diagnosis suspects, each place once, with what was found of it first; a note suspects nothing."""
    first: dict[str, str] = {}
    for finding in findings:
        if finding.severity != "note":
            first.setdefault(finding.where, f"{in_words(name)}: {finding.title}")
    return list(first.values())


def _by_what_it_takes(not_judged: Iterable[NotJudged]) -> list[str]:
    """What could not be judged, together where the same would do; why stands in the parts."""
    by_takes: dict[str, list[str]] = {}
    for part in not_judged:
        by_takes.setdefault(part.takes, []).append(part.what)
    return [f"{few(whats, _NAMED)} (it takes {takes})" for takes, whats in by_takes.items()]


def _first(sentences: Sequence[str]) -> str:
    more = f"; and {len(sentences) - _NAMED:,} more" if len(sentences) > _NAMED else ""
    return "; ".join(sentences[:_NAMED]) + more


def _nothing_to_judge(reading: Reading) -> str:
    if reading.is_imported:
        return "an import holds no samples of ranks; it takes a run on the machine"
    if reading.is_dry:
        return "a dry run uses none; it takes a run on the machine"
    if reading.shares_gpus:
        return "ranks share a GPU, so no time is that of a machine; it takes a run with one rank a GPU"
    if not any(history.pooled is not None for history in reading.histories):
        return "nothing was measured; it takes a case that ends well"
    return "one rank has no peer; it takes more ranks, and matmul or link_matrix in the suite"
