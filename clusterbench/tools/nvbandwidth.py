"""nvbandwidth: matrices of bandwidths, or of latencies, between host and GPUs and between GPUs.

Source: NVIDIA/nvbandwidth, ``README.md``, ``testcases_ce.cpp``. GB/s of 1e9, ns. The diagonal of a matrix between GPUs
is ``0.00`` in older versions and ``N/A`` in newer ones. From 0.6 on a test of both directions between GPUs prints three
matrices, each direction and the total. Where a ``SUM`` follows, it is held against the cells.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, number, starts_with_figure, whole_lines

_RUNNING = re.compile(r"Running (\w+)\.?")
_TITLE = re.compile(r"(.*\(column\).*)\((GB/s|ns)\)")
_WHOLE_TITLE = re.compile(r"(?:mem|Device )[^()]*(?:\b(CPU|GPU)\(row\) [^()]*)?\bGPU\(column\)[^()]*")
_OF_SEVERAL = re.compile(r"\bGPU\(column\) (Read1|Read2|Write1|Write2|Total) bandwidth ")
_SUM = re.compile(r"SUM (\w+) (\S+)")
_FACTOR = {"GB/s": 1e9, "ns": 1e-9}
_ROUNDED = 0.01


@dataclass(frozen=True)
class Matrix:
    """One test. ``cells[row, column]`` is in ``unit``, B/s or s; cells that do not apply are left out.

    ``between_gpus`` is True where rows are GPUs too.
    """

    unit: str
    between_gpus: bool
    cells: Mapping[tuple[int, int], float]


def parse(text: str) -> Mapping[str, Matrix]:
    """Every test that has a matrix, by name; tests that were waived have none.

    Of a test with three matrices each has a name of its own, as in its sum: ``TEST_read1``, ``TEST_read2``,
    ``TEST_total``, or with ``write``.

    Raises
    ------
    ToolError
        If there is none, one is cut or malformed, or its sum is not that of its cells.
    """
    matrices: dict[str, Matrix] = {}
    lines = deque(whole_lines(text))
    name = ""
    while lines:
        line = lines.popleft()
        if match := _RUNNING.fullmatch(line.strip()):
            name = match[1]
        elif match := _SUM.fullmatch(line.strip()):
            _expect_sum(matrices, match[1], match[2], line)
        elif match := _TITLE.fullmatch(line.strip()):
            title, key = _WHOLE_TITLE.fullmatch(match[1]), _key(name, match[1])
            if not name or key in matrices or title is None:
                raise ToolError(f"nvbandwidth printed a title that cannot be read: {line.strip()!r}")
            between_gpus = title[1] == "GPU"
            header = lines.popleft().split() if lines else []
            body = []
            while lines and starts_with_figure(lines[0]):
                body.append(lines.popleft())
            if not lines and not between_gpus:  # how many rows there are is known by the line behind them
                raise ToolError(f"nvbandwidth printed a matrix that is cut: {end_of(text)}")
            matrices[key] = _matrix(match[2], between_gpus, header, body)
    if not matrices:
        raise ToolError(f"nvbandwidth printed no matrix that can be read: {end_of(text)}")
    return matrices


def _key(test: str, title: str) -> str:
    one = _OF_SEVERAL.search(title)
    return test if one is None or test.endswith(f"_{one[1].lower()}") else f"{test}_{one[1].lower()}"


def _matrix(unit: str, between_gpus: bool, header: list[str], body: list[str]) -> Matrix:
    if not body or not header or header != [str(index) for index in range(len(header))]:
        raise ToolError(f"nvbandwidth printed a matrix without rows or columns: {' '.join(header)!r}")
    if between_gpus and len(body) != len(header):
        raise ToolError(f"nvbandwidth printed {len(body)} rows of a matrix between {len(header)} GPUs")
    cells: dict[tuple[int, int], float] = {}
    for index, line in enumerate(body):
        first, *row = line.split()
        if first != str(index) or len(row) != len(header):
            raise ToolError(f"nvbandwidth printed a row that does not fit its header: {line.strip()!r}")
        for column, cell in enumerate(row):
            if cell == "N/A" or (between_gpus and index == column):
                continue
            value = number("nvbandwidth", cell, line)
            if value == 0:
                raise ToolError(f"nvbandwidth printed {cell!r} where a number above zero belongs: {line.strip()!r}")
            cells[index, column] = value * _FACTOR[unit]
    return Matrix("B/s" if unit == "GB/s" else "s", between_gpus, cells)


def _expect_sum(matrices: Mapping[str, Matrix], name: str, cell: str, line: str) -> None:
    if name not in matrices:
        raise ToolError(f"nvbandwidth printed a sum of a matrix that it did not print: {line.strip()!r}")
    matrix = matrices[name]
    factor = _FACTOR["GB/s" if matrix.unit == "B/s" else "ns"]
    by_cells = sum(matrix.cells.values()) / factor
    if abs(number("nvbandwidth", cell, line) - by_cells) > _ROUNDED * (1 + len(matrix.cells)):
        raise ToolError(f"nvbandwidth printed a sum that is not that of its cells, {by_cells:.2f}: {line.strip()!r}")
