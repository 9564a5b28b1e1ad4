"""HPL (Linpack), also NVIDIA's and Intel's: each solve with its time, rate and residual check.

Source: netlib.org/benchmark/hpl, ``testing/ptest/HPL_pdtest.c``: a solve counts 2/3 N^3 + 3/2 N^2 operations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError

_ROW = re.compile(
    r"(?P<variant>W[RC]\w+)\s+(?P<n>\d+)\s+(?P<nb>\d+)\s+(?P<p>\d+)\s+(?P<q>\d+)\s+(?P<time>\d+\.\d+)\s+"
    r"(?P<rate>\d+\.\d+e[+-]\d+)(?:\s*\(\s*[\d.e+-]+\))?"
)
_BEGUN = re.compile(r"W[RC]\w+(?:\s+\d+){1,4}(?:\s.*)?")
_RESIDUAL = re.compile(r"\|\|Ax-b\|\|.*=\s*(?P<residual>\S+)\s*\.* (?P<word>PASSED|FAILED)")
_LIKENESS, _ROUNDED_S = 0.02, 0.006


@dataclass(frozen=True)
class Solve:
    """``passed`` is None where the text has no residual behind it."""

    line: int
    variant: str
    n: int
    nb: int
    p: int
    q: int
    seconds: float
    flops_per_s: float
    passed: bool | None
    residual: str = ""


def is_hpl(text: str) -> bool:
    return any(_ROW.fullmatch(line.strip()) for line in text.splitlines())


def parse(text: str) -> tuple[Solve, ...]:
    """Every solve.

    Raises
    ------
    ToolError
        If a row is cut, or a rate is not the operations of its N over its time.
    """
    solves: list[Solve] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if row := _ROW.fullmatch(line):
            n, seconds, rate = int(row["n"]), float(row["time"]), float(row["rate"]) * 1e9
            flops = 2 / 3 * n**3 + 3 / 2 * n**2
            if not rate or abs(rate * seconds - flops) > _LIKENESS * flops + _ROUNDED_S * rate:
                raise ToolError(f"HPL printed a rate that is not the operations of its N over its time: {line!r}")
            seconds = seconds or flops / rate  # shorter than the hundredths that are printed
            sizes = int(row["nb"]), int(row["p"]), int(row["q"])
            solves.append(Solve(number, row["variant"], n, *sizes, seconds, rate, None))
        elif _BEGUN.fullmatch(line):
            raise ToolError(f"HPL printed a row that is not whole: {line!r}")
        elif solves and solves[-1].passed is None and (said := _RESIDUAL.search(line)):
            last = solves[-1]
            solves[-1] = Solve(**(vars(last) | {"passed": said["word"] == "PASSED", "residual": said["residual"]}))
    return tuple(solves)
