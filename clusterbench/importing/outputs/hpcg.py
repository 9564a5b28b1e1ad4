"""HPCG as cases: one for each result."""

from __future__ import annotations

from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import ImportedCase
from clusterbench.tools import hpcg


class HpcgResults(Output):
    """The rating in FLOP/s of all ranks; a result that HPCG calls invalid is a case that is wrong.

    The result says how many ranks there were, and nothing on how many hosts they were.
    """

    tool = "HPCG"
    question = "How fast are sparse systems solved, by HPCG?"
    takes = frozenset({"num_nodes"})

    def holds(self, text: str) -> bool:
        return hpcg.is_hpcg(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        results = hpcg.parse(text)
        notes = [
            f"{name}:{result.line}: it took {result.seconds:g} s, which HPCG calls too short for an official result"
            for result in results
            if result.is_short
        ]
        return Read([_case(name, result, facts) for result in results], tuple(notes))


def _case(name: str, result: hpcg.Result, facts: Facts) -> ImportedCase:
    num_nodes = facts.hosts_of(name, result.ranks)
    where = f"{name}:{result.line}"
    point: dict[str, Any] = {"grid": "x".join(map(str, result.grid))}
    if result.threads is not None:
        point["threads"] = result.threads
    if result.flops_per_s is None:
        reason = f"{where}: HPCG calls the result invalid"
        return ImportedCase(where, point, result.ranks, num_nodes, status="wrong", reason=reason)
    figures = {"flops_per_s": result.flops_per_s}
    return ImportedCase(where, point, result.ranks, num_nodes, figures=figures, time_s=result.seconds)
