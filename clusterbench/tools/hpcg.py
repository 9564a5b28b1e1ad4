"""HPCG's result: the rating of a run, and whether it is valid.

Source: hpcg-benchmark/hpcg, ``src/ReportResults.cpp``, ``OutputFile.cpp`` (3.1: ``Machine Summary::Distributed
Processes=2``) and ``YAML_Doc.cpp`` (before: the same names, indented). The rating counts the operations of the
reference, and the time of the setup over ten sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import positive

_BEGIN = "HPCG-Benchmark"
_RATING, _INVALID = "Final Summary::HPCG result is VALID with a GFLOP/s rating of", "Final Summary::HPCG result is"
_AGAIN = "GFLOP/s Summary::Total with convergence and optimization phase overhead"
_SHORT = "Final Summary::Results are valid but execution time (sec) is"
_RANKS, _THREADS = "Machine Summary::Distributed Processes", "Machine Summary::Threads per processes"
_GRID = tuple(f"Global Problem Dimensions::Global n{axis}" for axis in "xyz")
_SECONDS = "Benchmark Time Summary::Total"
_LIKENESS = 0.001

Said = Mapping[str, tuple[int, str]]
"""What a run says by name, each with its line."""


@dataclass(frozen=True)
class Result:
    """``flops_per_s`` is the official rating of all ranks; None where HPCG calls the result invalid.

    ``seconds`` is what all sets of iterations took, ``is_short`` where that is too short for an official result.
    """

    line: int
    ranks: int
    threads: int | None
    grid: tuple[int, int, int]
    seconds: float
    flops_per_s: float | None
    is_short: bool


def is_hpcg(text: str) -> bool:
    return re.search(r"^ *HPCG-Benchmark\b", text, re.MULTILINE) is not None


def parse(text: str) -> tuple[Result, ...]:
    """Every result of the text.

    Raises
    ------
    ToolError
        If one lacks what it ran on, how long, or its rating, or says two ratings.
    """
    return tuple(map(_result, _runs(text)))


def _runs(text: str) -> Iterator[Said]:
    said: dict[str, tuple[int, str]] = {}
    above = ""
    for index, line in enumerate(text.split("\n")[:-1], 1):  # what is behind the last end may be cut
        if line.strip().startswith(_BEGIN):
            if said:
                yield said
            said, above = {_BEGIN: (index, "")}, ""
        elif said and "::" in line:
            name, _, value = line.strip().rpartition("=")
            said.setdefault(name, (index, value))
        elif said and ":" in line:
            name, _, value = map(str.strip, line.partition(":"))
            above = above if value else name
            said.setdefault(f"{above}::{name}", (index, value))
    if said:
        yield said


def _result(said: Said) -> Result:
    if missing := [name for name in (_RANKS, *_GRID, _SECONDS) if name not in said]:
        raise ToolError(f"HPCG's result of line {said[_BEGIN][0]} lacks {missing[0]!r}: it did not end, or it is cut")
    if _RATING not in said and _INVALID not in said:
        raise ToolError(f"HPCG's result of line {said[_BEGIN][0]} has no rating: it did not end, or it is cut")
    index, _ = said.get(_RATING) or said[_INVALID]
    nx, ny, nz = (int(_figure(said, name)) for name in _GRID)
    return Result(
        line=index,
        ranks=int(_figure(said, _RANKS)),
        threads=int(_figure(said, _THREADS)) if _THREADS in said else None,
        grid=(nx, ny, nz),
        seconds=_figure(said, _SECONDS),
        flops_per_s=_rating(said) if _RATING in said else None,
        is_short=_SHORT in said,
    )


def _rating(said: Said) -> float:
    rating = _figure(said, _RATING)
    if _AGAIN in said and abs(_figure(said, _AGAIN) - rating) > _LIKENESS * rating:
        raise ToolError(f"HPCG says two ratings, {said[_RATING][1]} and {said[_AGAIN][1]} GFLOP/s")
    return rating * 1e9


def _figure(said: Said, name: str) -> float:
    return positive("HPCG", said[name][1], f"{name}={said[name][1]}")
