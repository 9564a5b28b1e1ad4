from __future__ import annotations

from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.measured.bounds import BEYOND
from clusterbench.rows import Row


class BeyondBound(Diagnosis):
    """Figures that no device of this kind can reach.

    What it looks for
    -----------------
    Rates and bytes that are more than 10 % above what the data sheet of the GPU allows: FLOP/s at the dense peak,
    bytes per second of its memory and links, bus bandwidth of collectives inside one host (with what an NVLink
    switch that reduces may add), MFU and HFU above 1 with attention counted under its causal mask, and more memory
    than the GPU has. A data sheet's rates are of one clock, which a GPU may exceed by some percent. Devices that
    are in no table, and CPUs, have no bound; nor have collectives between hosts, as the rates of network cards are
    not in the plan.

    Why it matters
    --------------
    Such a figure is no result: work was left out, time was measured wrongly, or the device is another one. It is void,
    as are all that rest on the same time; the time itself stays, and the run fails.

    How to confirm
    --------------
    Compare the time with the same case at twice the size: what is not waited for does not grow. Compare the GPU's name
    with the table in ``hardware/``.

    What usually fixes it
    ---------------------
    Work that is really done and waited for inside the timed stretch, the right name of the device, or a table whose
    figure was read wrongly.
    """

    subject: ClassVar[Subject] = "cases"

    def answer(self, reading: Reading) -> Answer:
        first: dict[str, Row] = {}
        for row in reading.rows:
            if row.value is None and row.basis.startswith(BEYOND):
                first.setdefault(row.case, row)
        return Answer(tuple(_finding(row) for row in first.values()))


def _finding(row: Row) -> Finding:
    what = row.basis.removeprefix(f"{BEYOND}: ")
    return Finding(row.case, what, "error", "all figures of this case that rest on it are void", case=row.case)
