from __future__ import annotations

from clusterbench.cases import Reading
from clusterbench.diagnoses import Diagnosis, Finding
from clusterbench.rows import Row


class Unstable(Diagnosis):
    """Cases whose iterations differ too much for their median to be trusted.

    What it looks for
    -----------------
    A coefficient of variation (standard deviation over mean of the iteration times, all repeats together) above 5 %,
    or a slowest iteration above 1.5 times the median. These are nccl-tests' own limits.

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

    def findings(self, reading: Reading) -> list[Finding]:
        evidence: dict[str, list[str]] = {}
        for row in reading.rows:
            if row.metric in ("time_cv", "time_max_over_median") and _above(row):
                evidence.setdefault(row.case, []).append(_words(row))
        return [
            Finding(case, "iterations differ too much", "warning", "; ".join(words)) for case, words in evidence.items()
        ]


def _above(row: Row) -> bool:
    return row.value is not None and row.expected is not None and row.value > row.expected


def _words(row: Row) -> str:
    assert row.value is not None
    if row.metric == "time_cv":
        return f"cv {100 * row.value:.1f} % over {row.iterations} iterations"
    return f"slowest iteration {row.value:.2f} times the median"
