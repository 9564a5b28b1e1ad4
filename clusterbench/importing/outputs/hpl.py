"""HPL as cases: one for each solve."""

from __future__ import annotations

from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import ImportedCase
from clusterbench.tools import hpl

_HPCC = "HPC Challenge Benchmark version"


class HplSolves(Output):
    """FLOP/s of all ranks together; a solve whose residual failed is a case that is wrong.

    The grid says how many ranks solved, and nothing on how many hosts they were.
    """

    tool = "HPL"
    question = "How fast is a dense system solved, by HPL?"
    takes = frozenset({"num_nodes"})

    def holds(self, text: str) -> bool:
        return hpl.is_hpl(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        cases, notes = [], []
        if _HPCC in text:
            left = "PTRANS, STREAM, FFT and others are left out"
            notes.append(f"{name}: the text is that of HPCC, of which HPL alone is read: {left}")
        for solve in hpl.parse(text):
            world_size = solve.p * solve.q
            num_nodes = facts.hosts_of(name, world_size)
            point: dict[str, Any] = {"n": solve.n, "nb": solve.nb, "p": solve.p, "q": solve.q, "variant": solve.variant}
            where = f"{name}:{solve.line}"
            if solve.passed is None:
                notes.append(f"{where}: no residual is printed, so that its result was not checked")
            if solve.passed is False:
                reason = f"{where}: the residual {solve.residual} failed HPL's check"
                cases.append(ImportedCase(where, point, world_size, num_nodes, status="wrong", reason=reason))
                continue
            figures = {"flops_per_s": solve.flops_per_s}
            cases.append(ImportedCase(where, point, world_size, num_nodes, figures=figures, time_s=solve.seconds))
        return Read(cases, tuple(notes))
