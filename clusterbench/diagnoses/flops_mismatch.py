from __future__ import annotations

from typing import ClassVar

from clusterbench.benchmarks.train_step import formulas_of
from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.expected.flops import METRIC
from clusterbench.job.passes import EXECUTED
from clusterbench.measured.flops import DIFFERS, differences, evidence, is_unverified
from clusterbench.run_folder.attempts import History
from clusterbench.words import plural


class FlopsMismatch(Diagnosis):
    """Steps that compute more or less than their formula says.

    What it looks for
    -----------------
    Cases in which the FLOPs of matrix products and attention, counted on every rank where PyTorch dispatches operators
    in one untimed step, differ from the formula: rank by rank by the layers that the layout gives it, and all ranks
    together by the layers of the model. Operators that multiply and have no formula are named, too. The counter knows
    nothing of the formula.

    Why it matters
    --------------
    A step that leaves out layers, micro-batches or experts is fast and wrong, and one that computes more than was asked
    for hides its cost. MFU and HFU of such a case say nothing and are left out, and the run fails. On a GPU it is a
    warning: the formulas of its operators were held against one H200 alone.

    How to confirm
    --------------
    Compare the operators of that rank in ``observations.jsonl`` (``passes``, ``executed``) with those of a case without
    a finding. Too few of all kinds alike are layers or micro-batches that were left out; too few in backward alone is
    recomputation that does not recompute.

    What usually fixes it
    ---------------------
    The way the model is cut into stages, the loop over micro-batches, recomputation that is not around every layer, or
    a model whose operators are not those of the formula.
    """

    subject: ClassVar[Subject] = "cases"

    def answer(self, reading: Reading) -> Answer:
        counted = [row for row in reading.rows_of(METRIC) if row.value is not None]
        differing = {row.case for row in counted if row.basis.startswith(DIFFERS)}
        findings = tuple(_of_case(history) for history in reading.histories if history.case.id in differing)
        is_judged = any(row.expected is not None for row in counted)
        return Answer(findings, ("counted FLOPs are those of the formulas",) if is_judged and not findings else ())


def _of_case(history: History) -> Finding:
    case, seen = history.case, history.pooled
    assert seen is not None, "there is a figure of it"
    worst, *others = differences(case, formulas_of(case), EXECUTED.of(seen))
    more = f"; {plural(len(others), 'other figure')} of this step differ as well" if others else ""
    return Finding(
        f"{case.id}, {worst.where}",
        f"FLOPs of {worst.what}: {worst.by}",
        "warning" if is_unverified(case) else "error",
        evidence(worst) + more,
        case=case.id,
    )
