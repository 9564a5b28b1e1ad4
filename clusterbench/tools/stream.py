"""STREAM: the best rate of copy, scale, add and triad over three arrays.

Source: cs.virginia.edu/stream, ``stream.c`` 5.10: MB are 1e6 bytes; copy and scale move two arrays, the others three.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError

_ROW = re.compile(r"(?P<kernel>Copy|Scale|Add|Triad): +(?P<rate>\d+\.\d+) +[\d.]+ +(?P<best>[\d.]+) +[\d.]+")
_BYTES = re.compile(r"(?m)^\s*This system uses (\d+) bytes per array element\.")
_SIZE = re.compile(r"(?m)^\s*Array size = (\d+) \(elements\)")
_THREADS = re.compile(r"(?m)^\s*Number of Threads counted = (\d+)")
_ARRAYS = {"Copy": 2, "Scale": 2, "Add": 3, "Triad": 3}
_LIKENESS = 0.02


@dataclass(frozen=True)
class Kernel:
    line: int
    name: str
    bytes_per_s: float
    best_s: float


@dataclass(frozen=True)
class Stream:
    """``num_threads`` is None where it was built without OpenMP."""

    kernels: tuple[Kernel, ...]
    num_elements: int
    num_threads: int | None


def is_stream(text: str) -> bool:
    return "STREAM version $Revision:" in text or any(_ROW.fullmatch(line.strip()) for line in text.splitlines())


def parse(text: str) -> Stream:
    """One run.

    Raises
    ------
    ToolError
        If its results did not validate, a kernel or the size is missing, or a rate is not its bytes over its time.
    """
    if "Failed Validation" in text:
        raise ToolError("STREAM's validation failed, so its figures are of wrong results")
    ended = text.count("Solution Validates")
    if not ended:
        raise ToolError("the text holds no run of STREAM that ended")
    if ended > 1:
        raise ToolError(f"the text holds {ended} runs of STREAM: import each from a file of its own")
    element, size, threads = (pattern.search(text) for pattern in (_BYTES, _SIZE, _THREADS))
    if not element or not size:
        raise ToolError("STREAM's array size is not in the text")
    kernels = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if row := _ROW.fullmatch(line):
            rate, best = float(row["rate"]) * 1e6, float(row["best"])
            moved = _ARRAYS[row["kernel"]] * int(element[1]) * int(size[1])
            if not rate or abs(rate * best - moved) > _LIKENESS * moved + rate * 1e-6:
                raise ToolError(f"STREAM printed a rate that is not its bytes over its time: {line!r}")
            kernels.append(Kernel(number, row["kernel"], rate, best))
    if [kernel.name for kernel in kernels] != [*_ARRAYS]:
        raise ToolError("STREAM's table does not have each of its four kernels once")
    return Stream(tuple(kernels), int(size[1]), int(threads[1]) if threads else None)
