"""What a diagnosis says of a training step that was invented."""

from __future__ import annotations

from typing import Any

from clusterbench.diagnoses import Answer, Diagnosis
from clusterbench.types import Case, split_key
from tests.measured.steps import derived, observed
from tests.report.synthetic import outcome, reading, row


def answer_of(diagnosis: Diagnosis, case: Case, **passes: Any) -> Answer:
    """Of a run with this case alone, in which its ranks recorded these passes."""
    metrics = derived(case, **passes)
    rows = [
        row(case, what.name, what.value, unit=what.unit, basis=what.basis, detail=what.detail, expected=planned.value)
        if (planned := case.expected.get(key))
        else row(case, what.name, what.value, unit=what.unit, basis=what.basis, detail=what.detail)
        for key, what in metrics.items()
    ]
    for key in case.expected.keys() - metrics.keys():  # expected and not measured
        name, detail = split_key(key)
        rows.append(row(case, name, None, detail=detail, expected=case.expected[key].value, iterations=0))
    return diagnosis.answer(reading((outcome(case), observed(case, **passes)), cases=[case], rows=rows))
