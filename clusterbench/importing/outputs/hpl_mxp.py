"""HPL-MxP as cases: one for each solve."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import TEST, ImportedCase
from clusterbench.tools import hpl_mxp


class HplMxpSolves(Output):
    """FLOP/s of all GPUs together, the iterative solver included; a solve whose residual failed is wrong.

    The time follows from the rate: it is not printed with the result.
    """

    tool = "HPL-MxP"
    question = "How fast is a dense system solved in mixed precision, by HPL-MxP?"
    device: ClassVar[Literal["cpu", "cuda"]] = "cuda"
    takes = frozenset({"num_nodes"})

    def holds(self, text: str) -> bool:
        return hpl_mxp.is_hpl_mxp(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        return Read([_case(name, solve, facts) for solve in hpl_mxp.parse(text)])


def _case(name: str, solve: hpl_mxp.MxpSolve, facts: Facts) -> ImportedCase:
    world_size = solve.p * solve.q
    num_nodes = facts.hosts_of(name, world_size)
    where = f"{name}:{solve.line}"
    point: dict[str, Any] = {TEST: "HPL-MxP", "n": solve.n, "nb": solve.nb, "p": solve.p, "q": solve.q}
    point |= {"sloppy_type": solve.sloppy} if solve.sloppy else {}
    if not solve.passed:
        reason = f"{where}: the residual {solve.residual} failed HPL-MxP's check"
        return ImportedCase(where, point, world_size, num_nodes, status="wrong", reason=reason)
    figures = {"flops_per_s": solve.flops_per_s}
    return ImportedCase(where, point, world_size, num_nodes, figures=figures, time_s=solve.seconds)
