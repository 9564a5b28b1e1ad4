"""HPL-MxP, as NVIDIA's prints it: a solve in mixed precision with its rate and residual check.

Source: docs.nvidia.com/nvidia-hpc-benchmarks, HPL_MxP_benchmark.html; scc25-benchmarking.readthedocs.io, which has an
output. The rate to report counts 2/3 N^3 + 3/2 N^2 operations of all GPUs; that without the iterative solver is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import count, positive

_RESULT = re.compile(r"\*+ *HPL[- ]MxP Result *\*+")
_RESIDUAL = re.compile(r"\|\|Ax-b\|\|_oo */.*= *(?P<residual>\S+) *\.+ *(?P<word>PASSED|FAILED)")
_SIZES = re.compile(
    r"N *= *(?P<n>\d+), *NB *= *(?P<nb>\d+), *NPROW *= *(?P<p>\d+), *NPCOL *= *(?P<q>\d+)"
    r"(?:, *SLOPPY-TYPE *= *(?P<sloppy>\w+))?"
)
_RATE = re.compile(r"GFLOPS *= *(?P<rate>[\d.]+(?:e[+-]\d+)?), *per GPU *= *(?P<per_gpu>[\d.]+(?:e[+-]\d+)?)\b.*")
_NOT_TO_REPORT = "excluding the iterative solver"
"""Behind the rate of the factorisation, whose line may be broken in two."""
_LIKENESS = 0.001


@dataclass(frozen=True)
class MxpSolve:
    """``sloppy`` is the precision of the factorisation in NVIDIA's number: 1 FP8, 2 FP16."""

    line: int
    n: int
    nb: int
    p: int
    q: int
    sloppy: str
    flops_per_s: float
    seconds: float
    passed: bool
    residual: str


def is_hpl_mxp(text: str) -> bool:
    return _RESULT.search(text) is not None


def parse(text: str) -> tuple[MxpSolve, ...]:
    """Every result of the text.

    Raises
    ------
    ToolError
        If one lacks its residual, sizes or rate, or its rate is not that of one GPU times their number.
    """
    lines = [line.strip() for line in text.split("\n")[:-1]]
    found = list(_solves(lines))
    if not found:
        raise ToolError("HPL-MxP's result is cut: it has no line with its rate")
    return tuple(found)


def _solves(lines: Sequence[str]) -> Iterator[MxpSolve]:
    residual = sizes = None
    for index, line in enumerate(lines, 1):
        if _RESULT.fullmatch(line):
            residual = sizes = None
        residual, sizes = _RESIDUAL.search(line) or residual, _SIZES.search(line) or sizes
        if (rate := _RATE.fullmatch(line)) is None or _NOT_TO_REPORT in line:
            continue
        if residual is None or sizes is None:
            raise ToolError(f"HPL-MxP's rate of line {index} has no residual or no sizes above it: {line!r}")
        yield _solve(index, line, rate, residual, sizes)


def _solve(index: int, line: str, rate: re.Match[str], residual: re.Match[str], sizes: re.Match[str]) -> MxpSolve:
    n, nb, p, q = (count("HPL-MxP", sizes[name], sizes[0]) for name in ("n", "nb", "p", "q"))
    all_of_them, one = (positive("HPL-MxP", rate[name], line) for name in ("rate", "per_gpu"))
    if abs(one * p * q - all_of_them) > _LIKENESS * all_of_them:
        raise ToolError(f"HPL-MxP printed a rate that is not {p} x {q} times that of one GPU: {line!r}")
    flops_per_s = all_of_them * 1e9
    seconds = (2 / 3 * n**3 + 3 / 2 * n**2) / flops_per_s
    passed = residual["word"] == "PASSED"
    return MxpSolve(index, n, nb, p, q, sizes["sloppy"] or "", flops_per_s, seconds, passed, residual["residual"])
