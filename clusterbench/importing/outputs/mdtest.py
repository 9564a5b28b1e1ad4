"""mdtest as cases: one for each operation on files and directories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import TEST, ImportedCase
from clusterbench.tools import mdtest
from clusterbench.types import metric_key


class MdtestRates(Output):
    """Operations a second of all ranks: the mean over iterations, with the least and the most.

    An operation of zero a second was not asked for, and is no case. Reading other data than were written is wrong; a
    run that gave up is a case that failed.
    """

    tool = "mdtest"
    question = "How fast does this file system make, find and remove files, by mdtest?"

    def holds(self, text: str) -> bool:
        return mdtest.is_mdtest(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        return Read([case for run in mdtest.parse(text) for case in _cases(name, run)])


def _cases(name: str, run: mdtest.Run) -> Iterator[ImportedCase]:
    about: dict[str, Any] = {"items": run.items} if run.items else {}
    for operation in run.operations:
        if not operation.mean_per_s:
            continue
        where, point = f"{name}:{operation.line}", {TEST: f"mdtest {operation.name}", **about}
        if run.reads_wrong and operation.name == "File read":
            reason = f"{where}: mdtest read other data than were written"
            yield ImportedCase(where, point, run.ranks, run.num_nodes, status="wrong", reason=reason)
            continue
        figures = {"message_rate": operation.mean_per_s}
        if run.iterations > 1:
            figures[metric_key("message_rate", statistic="min")] = operation.min_per_s
            figures[metric_key("message_rate", statistic="max")] = operation.max_per_s
        time_s = 1 / operation.mean_per_s
        yield ImportedCase(where, point, run.ranks, run.num_nodes, figures=figures, time_s=time_s)
    if run.error:
        line, words = run.error
        where, point = f"{name}:{line}", {TEST: "mdtest", **about}
        yield ImportedCase(where, point, run.ranks, run.num_nodes, status="failed", reason=f"{where}: {words}")
