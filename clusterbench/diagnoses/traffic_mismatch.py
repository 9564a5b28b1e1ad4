from __future__ import annotations

from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import History
from clusterbench.units import format_value


class TrafficMismatch(Diagnosis):
    """Steps that send more or less than their formula says.

    What it looks for
    -----------------
    Cases whose bytes per step and axis, counted where PyTorch dispatches collectives, differ from the formula written
    down before the run; axes that the formula does not have, and axes without a byte that should have some. The counter
    knows nothing of the formula. Bytes that a router decides are not judged.

    Why it matters
    --------------
    Either the step is not the step that was asked for, or the formula is wrong. In both cases no figure of this case,
    its time included, can be trusted, so the run fails.

    How to confirm
    --------------
    Compare the collectives of that axis one by one with the list of the layout; a factor of two points at a forward
    that is recomputed, a constant excess at something that is sent once a step.

    What usually fixes it
    ---------------------
    A missing or a second reduction in the model, recomputation that the formula was not told of, a bucket or a dtype
    that differs from the suite's.
    """

    subject: ClassVar[Subject] = "cases"

    def answer(self, reading: Reading) -> Answer:
        axes = reading.rows_of("traffic_bytes")
        with_formula = {row.case for row in axes if row.expected is not None}
        counted = {history.case.id for history in reading.histories if _was_counted(history)}
        findings, judged = [], 0
        for row in axes:
            # An axis without a figure is one along which nothing was sent, provided that there was a count.
            is_silent = row.value is None and not row.iterations and row.case in counted
            value = 0.0 if is_silent else row.value
            if value is not None and row.case in with_formula:
                judged += 1
                if _differs(row, value):
                    findings.append(_finding(row, value, row.expected or 0.0))
        return Answer(tuple(findings), ("counted bytes are those of the formulas",) if judged and not findings else ())


def _was_counted(history: History) -> bool:
    return history.pooled is not None and "traffic" in history.pooled.passes


def _differs(row: Row, value: float) -> bool:
    if row.basis.startswith("about"):  # a router decided
        return False
    # Both are whole bytes; anything else is the rounding of a float.
    return abs(value - (row.expected or 0.0)) > 0.5


def _finding(row: Row, value: float, formula: float) -> Finding:
    return Finding(
        f"{row.case}, axis {row.detail.get('axis', '?')}",
        f"counted {100 * value / formula - 100:+.1f} % against the formula"
        if formula
        else "counted traffic where the formula has none",
        "error",
        f"counted {format_value(value, 'B')} ({value:,.0f} B), "
        f"formula {format_value(formula, 'B')} ({formula:,.0f} B) per rank and step",
    )
