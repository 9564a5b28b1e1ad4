"""What was proven to compute the right thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from clusterbench.cases import Reading
from clusterbench.measured.agreement import disputed_cases
from clusterbench.measured.nodes import NODE_STEP
from clusterbench.measured.speed import LONE_RANK
from clusterbench.run_folder.attempts import History
from clusterbench.verdict.statement import MOST_NAMED, NOT_PROVEN, WRONG, Statement
from clusterbench.words import few, plural

_STEPS = ("train_step", NODE_STEP, LONE_RANK)


def proven_statement(reading: Reading) -> Statement:
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
        why = _nothing_to_prove(reading) if not wrong else f"wrong: {few(wrong, MOST_NAMED)}"
        word, tone = WRONG if wrong else NOT_PROVEN
        return Statement("proven", word, why, tone, ("not-proven",), counts, {**parts, "not_proven": [why]})
    sentence = f"{proven:,} of {plural(num_judged, 'training case')} held against one rank before the clock started"
    sentence += _cost(reading, measured)
    if unproven:
        sentence += f"; not proven: {', '.join(unproven)}"
    if wrong:
        return Statement(
            "proven", "WRONG", f"{sentence}; wrong: {few(wrong, MOST_NAMED)}", "bad", ("not-proven",), counts, parts
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
