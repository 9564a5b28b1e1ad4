from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.steadiness import DRIFT, TOO_FEW, cores_of, is_unsettled, is_unsteady
from clusterbench.diagnoses import Answer, Diagnosis, Finding, NotJudged, Subject
from clusterbench.rows import Row
from clusterbench.words import plural

MOST_APART = 5
"""Unsteady cases that are each a finding, if they are not most of the run."""


class Unstable(Diagnosis):
    """Cases whose iterations differ too much to trust their median, or that were timed too early.

    What it looks for
    -----------------
    A coefficient of variation (standard deviation over mean of the iteration times, all repeats together) above 5 %,
    or a slowest iteration above 1.5 times the median. These are nccl-tests' own limits. Two samples have no spread to
    speak of, so that such a case is not judged. Where more than five cases and most of them are unsteady, that is one
    finding about the machine. And on GPUs products, copies and training steps of which no two stretches of the warm-up,
    half a second each or longer, agreed within 1 % in ten seconds: clocks had not settled when they were timed.

    Why it matters
    --------------
    Two runs of an unstable case can differ by more than the effect one is looking for. The figure stays in the table
    with its low and high, and must not decide between close configurations.

    How to confirm
    --------------
    Run the case alone with more iterations, and look whether all iterations spread or a few stand out. Compare repeats:
    a step between them is another job, heat or a clock change.

    What usually fixes it
    ---------------------
    Nothing else on the machine, no more ranks than cores on a CPU, ranks bound to cores, fixed GPU clocks, more warmup,
    a larger message or batch.
    """

    subject: ClassVar[Subject] = "figures"

    def answer(self, reading: Reading) -> Answer:
        evidence: dict[str, list[str]] = {}
        judged = set()
        for row in (*reading.rows_of("time_cv"), *reading.rows_of("time_max_over_median")):
            if row.iterations > TOO_FEW:
                judged.add(row.case)
                if is_unsteady(row):
                    evidence.setdefault(row.case, []).append(_words(row))
        order = {history.case.id: number for number, history in enumerate(reading.histories)}
        cases = sorted(evidence, key=lambda case: order.get(case, len(order)))
        measured = [history.case.id for history in reading.histories if history.pooled is not None]
        few_samples = {case for case in measured if case not in judged and reading.ran_here}
        return Answer(
            (*_findings(reading, {case: evidence[case] for case in cases}, len(measured)), *_unsettled(reading)),
            (f"iterations of {plural(len(judged), 'case')} are steady",) if judged and not evidence else (),
            tuple(_too_few(reading, few_samples)),
        )


def _findings(reading: Reading, evidence: Mapping[str, Sequence[str]], num_measured: int) -> Iterator[Finding]:
    """One for each case; where most are unsteady, one about the machine."""
    if len(evidence) <= MOST_APART or 2 * len(evidence) <= num_measured:
        for case, words in evidence.items():
            yield Finding(case, "iterations differ too much", "warning", "; ".join(words))
        return
    unsteady = f"{len(evidence):,} of {num_measured:,} unsteady"
    shared = cores_shared(reading)
    listed = "\n".join(f"{case}: {'; '.join(words)}" for case, words in evidence.items())
    what = f"{unsteady}: {shared}" if shared else f"{unsteady}: something on this machine disturbs nearly all cases"
    yield Finding("the machine", what, "warning", listed, brief=what)


def _unsettled(reading: Reading) -> Iterator[Finding]:
    for row in reading.rows_of(DRIFT):
        if is_unsettled(row):
            apart = "" if row.value is None else f"; they are {100 * row.value:.1f} % apart"
            yield Finding(row.case, "timed before clocks had settled", "warning", f"{row.basis}{apart}")


def cores_shared(reading: Reading) -> str:
    """``4 ranks share 2 cores``, where CPU ranks take turns; nothing where each has a core, or nothing is known."""
    if reading.plan.cluster.device != "cpu":
        return ""
    cores = cores_of(reading.environment)
    most = max((history.case.world_size // history.case.num_nodes for history in reading.histories), default=0)
    return f"{most:,} ranks share {plural(cores, 'core')}" if cores and most > cores else ""


def _too_few(reading: Reading, cases: Set[str]) -> Iterator[NotJudged]:
    """Cases of too few samples, by how many they have."""
    counts: dict[int, list[str]] = defaultdict(list)
    for history in reading.histories:
        if history.pooled is not None and history.case.id in cases:
            counts[len(history.pooled.seconds[0])].append(history.case.id)
    for count, own in sorted(counts.items()):
        why, takes = f"{plural(count, 'iteration')}, too few to tell", f"{TOO_FEW + 1} iterations or more"
        yield NotJudged(plural(len(own), "case"), why, takes)


def _words(row: Row) -> str:
    assert row.value is not None
    if row.metric == "time_cv":
        return f"cv {100 * row.value:.1f} % over {row.iterations} iterations"
    return f"slowest iteration {row.value:.2f} times the median"
