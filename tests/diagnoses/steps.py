"""What a diagnosis says of a training step that was invented."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterbench.diagnoses import Answer, Diagnosis
from clusterbench.types import Case, Metric, Observation
from tests.report.synthetic import outcome, reading, row


def answer_of(diagnosis: Diagnosis, case: Case, seen: Observation, metrics: Iterable[Metric]) -> Answer:
    """Of a run with this case alone, which left these metrics."""
    rows = [
        row(case, metric.name, metric.value, unit=metric.unit, basis=metric.basis, expected=planned and planned.value)
        for metric in metrics
        for planned in [case.expected.get(metric.key)]
    ]
    seen = replace(seen, case=case.id, hash=case.hash)
    return diagnosis.answer(reading((outcome(case), seen), cases=[case], rows=rows))
