from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from clusterbench.cases import Reading
from clusterbench.cases.trained import workloads
from clusterbench.diagnoses import Answer, Diagnosis, Finding, Subject
from clusterbench.rows import Row, moved, moved_sentence

_ON_THE_SAME = ("sizes of a curve ran on the same hosts",)


class MovedCurve(Diagnosis):
    """Cases of one curve that ran on different hosts.

    What it looks for
    -----------------
    Among cases of one benchmark that compute the same on different numbers of ranks, those on more ranks that ran
    without some host of those on fewer. It happens when a host was lost and the run went on with the others, or was
    resumed elsewhere.

    Why it matters
    --------------
    What such a curve loses from one point to the next is the price of more ranks and the difference of hosts at once,
    and nothing in the figures tells the two apart.

    How to confirm
    --------------
    The column hosts of rows.csv; on the charts such points are hollow. Look whether the finding about unlike hosts
    names one of them.

    What usually fixes it
    ---------------------
    Run all cases of the curve again on one set of hosts, the smaller ones on some of those of the largest. For a
    question that compares sizes, start a new run rather than resume on other hosts.
    """

    subject: ClassVar[Subject] = "figures"

    def answer(self, reading: Reading) -> Answer:
        if len({row.hosts for row in reading.measured}) == 1:
            return Answer(healthy=_ON_THE_SAME)
        workload = workloads(reading.measured)
        curves: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        for row in reading.measured:
            curves[workload(row)].append(row)
        cases: dict[tuple[int, str, str], list[str]] = defaultdict(list)
        for curve in curves.values():
            for row, before in moved(sorted(curve, key=lambda row: row.world_size)):
                cases[row.world_size, row.hosts, before].append(row.case)
        findings = tuple(
            Finding(
                f"hosts {', '.join(hosts.split())}",
                moved_sentence(world_size, hosts, before),
                "warning",
                f"in {len(own)} case{'s' * (len(own) > 1)}: {', '.join(own[:3])}" + (" and others" if own[3:] else ""),
            )
            for (world_size, hosts, before), own in cases.items()
        )
        return Answer(findings, () if findings or not curves else _ON_THE_SAME)
