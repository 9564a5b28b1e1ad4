from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from clusterbench.benchmarks.train_step import formulas_of
from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.job.passes import TRAFFIC
from clusterbench.measured.traffic import METRIC, differences, has_formula
from clusterbench.run_folder.attempts import History


class TrafficMismatch(Diagnosis):
    """Steps that send more or less than their formula says.

    What it looks for
    -----------------
    Cases in which a rank's bytes per step and axis, counted where PyTorch dispatches collectives, differ from the
    formula of its stage; axes that the formula does not have, and axes without a byte that should have some. The
    counter knows nothing of the formula. Collectives are counted, too: as many bytes in more messages, or where a
    router decides how many bytes there are. Not where torch joins them: DDP's buckets, compiled layers.

    Why it matters
    --------------
    Either the step is not the step that was asked for, or the formula is wrong. The bytes of that axis are void, no
    other figure of this case can be trusted either, and the run fails.

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
        rows = reading.rows_of(METRIC)
        # a figure that differs is void, and an axis along which nothing was sent has none
        suspects = {row.case for row in rows if row.value is None}
        suspects &= {row.case for row in reading.rows_of("step_time") if row.value is not None}
        findings = tuple(
            finding for history in reading.histories if history.case.id in suspects for finding in _of(history)
        )
        is_judged = any(row.value is not None and row.expected is not None for row in rows)
        return Answer(findings, ("counted bytes are those of the formulas",) if is_judged and not findings else ())


def _of(history: History) -> Iterator[Finding]:
    case, seen = history.case, history.pooled
    if seen is not None and has_formula(case):
        for found in differences(case, formulas_of(case), TRAFFIC.of(seen)):
            where = f"{case.id}, axis {found.axis}, rank {found.rank}"
            yield Finding(where, found.by, "error", found.evidence, case=case.id)
