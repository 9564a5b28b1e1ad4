"""nvbandwidth: matrices of bandwidths, or of latencies, between host and GPUs and between GPUs.

Source: NVIDIA/nvbandwidth, ``README.md``, ``testcases_ce.cpp``, ``multinode_testcases.cpp``. GB/s of 1e9, ns. The
diagonal of a matrix between GPUs is ``0.00`` in older versions and ``N/A`` in newer ones. From 0.6 on a test of both
directions between GPUs prints three matrices, each direction and the total. Where a ``SUM`` follows, it is held against
the cells.

Tests of several nodes, ``multinode_...``, number the GPUs of all processes. Where GPUs copy both ways their titles say
``CPU(row)`` of GPUs, and ``Read1`` of a copy engine's writing. Where half of the GPUs write to the other half at once,
rows are such as ``0->2``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, number, positive, starts_with_figure, whole_lines

_RUNNING = re.compile(r"Running (\w+)\.?")
_TITLE = re.compile(r"(.*\(column\).*|multicast SM All -> All .*)\((GB/s|ns)\)")
_WHOLE_TITLE = re.compile(
    r"(?:mem|Device |multicast )[^()]*(?:\b(CPU|GPU)\(row\) [^()]*)?(?:\bGPU\(column\)| All -> All )[^()]*"
)
_BISECT = re.compile(r"Bisect benchmarking, simultaneous write CE BW")
_HALVES = re.compile(r" *([0-9]+)-> *([0-9]+) +(\S+)")
MULTINODE = "multinode_"
"""How tests of the GPUs of several hosts begin, which run with a process for each."""
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
        elif _BISECT.fullmatch(line.strip()) and name and name not in matrices:
            matrices[name] = Matrix("B/s", True, dict(_between_halves(lines)))
        elif match := _TITLE.fullmatch(line.strip()):
            title, key = _WHOLE_TITLE.fullmatch(match[1]), _key(name, match[1])
            if not name or key in matrices or title is None:
                raise ToolError(f"nvbandwidth printed a title that cannot be read: {line.strip()!r}")
            between_gpus = title[1] == "GPU" or (title[1] is not None and name.startswith(MULTINODE))
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
    if one is None or test.endswith(f"_{one[1].lower()}"):
        return test
    word = one[1].lower()
    return f"{test}_{word.replace('read', 'write') if test.startswith(MULTINODE) and '_write_' in test else word}"


def _between_halves(lines: deque[str]) -> Iterator[tuple[tuple[int, int], float]]:
    """From which GPU to which, and B/s, while all others of both halves write too: every GPU is in one row of each."""
    pairs = []
    if lines:
        lines.popleft()  # the number of the only column
    while lines and (match := _HALVES.fullmatch(lines[0])):
        line = lines.popleft()
        pairs.append((int(match[1]), int(match[2])))
        yield pairs[-1], positive("nvbandwidth", match[3], line) * _FACTOR["GB/s"]
    half, whole = len(pairs) // 2, len(pairs)
    if not pairs or pairs != [(gpu, (gpu + half) % whole) for gpu in range(whole)]:
        raise ToolError(f"nvbandwidth printed halves that are cut, or not each GPU and the one opposite: {pairs}")


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
