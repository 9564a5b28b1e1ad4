"""What was proven to compute the right thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clusterbench.cases import Reading
from clusterbench.cases.proven import STEPS
from clusterbench.run_folder.attempts import History
from clusterbench.verdict.statement import MOST_NAMED, NOT_PROVEN, WRONG, Statement
from clusterbench.words import few, plural


def proven_statement(reading: Reading) -> Statement:
    """Training cases whose step was held against one rank before it was timed; no other case proves anything of a step.

    What makes a case unproven is said by :mod:`clusterbench.cases.proven` alone.
    """
    trained = [history for history in reading.histories if history.case.benchmark in STEPS]
    wrong = [history.case.id for history in trained if any(fault.status == "wrong" for fault in history.faults)]
    measured = [history for history in trained if history.pooled is not None and history.case.id not in wrong]
    num_judged = len(measured) + len(wrong)
    reasons = Counter(reading.unproven[history.case.id] for history in measured if history.case.id in reading.unproven)
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


def _cost(reading: Reading, trained: Sequence[History]) -> str:
    """What proving took, of all the time of the cases that were proven."""
    proving_s = sum(row.value or 0.0 for row in reading.rows_of("proof_time"))
    in_all_s = sum(outcome.elapsed_s for history in trained for outcome in history.outcomes)
    return f" ({proving_s:.1f} s of {in_all_s:.1f} s)" if proving_s else ""


def _nothing_to_prove(reading: Reading) -> str:
    if not any(history.pooled is not None for history in reading.histories):
        return "nothing was measured"
    if reading.is_imported:
        return "figures were taken over; whatever their source proved is not in them"
    if reading.is_dry:
        return "nothing was computed: a run on a machine holds each step against one rank"
    return "no case trains: a probe checks its own result and proves nothing of a training step"
