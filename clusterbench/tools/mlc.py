"""Intel's Memory Latency Checker (``mlc``): bandwidth from the processors of each NUMA node to the memory of each.

Source: Intel, Memory Latency Checker 3.11, ``mlc --bandwidth_matrix``. MB are 1e6 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import positive

_NAME = "Intel(R) Memory Latency Checker"
_TITLE = re.compile(r"Measuring Memory Bandwidths between nodes within system.*")
_HEAD = re.compile(r"Numa node((?:\s+\d+)+)")
_ROW = re.compile(r"(?P<node>\d+)(?P<cells>(?:\s+(?:[\d.]+|-))+)")


@dataclass(frozen=True)
class Mlc:
    """``bytes_per_s`` from the processors of a node to the memory of a node; ``lines`` of each of the first.

    A node without processors has no row. ``is_whole`` says whether every row of the matrix is as long as its head.
    """

    bytes_per_s: Mapping[tuple[int, int], float]
    lines: Mapping[int, str]
    is_whole: bool


def is_mlc(text: str) -> bool:
    return _NAME in text or any(map(_TITLE.fullmatch, map(str.strip, text.splitlines())))


def parse(text: str) -> Mlc:
    """The matrix of bandwidth; empty where the text has none.

    Raises
    ------
    ToolError
        If a cell is no number above zero, or there are several matrices.
    """
    rates: dict[tuple[int, int], float] = {}
    lines: dict[int, str] = {}
    columns: list[int] = []
    is_matrix, is_whole = False, True
    *whole, last = text.split("\n")
    for line in map(str.strip, whole):
        if _TITLE.fullmatch(line):
            is_matrix, columns = True, []
        elif is_matrix and (head := _HEAD.fullmatch(line)):
            columns = [int(word) for word in head[1].split()]
        elif columns and (row := _ROW.fullmatch(line)):
            cells = row["cells"].split()
            if len(cells) != len(columns):
                is_whole = False
                continue
            if int(row["node"]) in lines:
                raise ToolError("the text holds several runs of mlc: a file of each tells them apart")
            lines[int(row["node"])] = line
            for column, cell in zip(columns, cells, strict=True):
                if cell != "-":
                    rates[int(row["node"]), column] = positive("mlc", cell, line) * 1e6
        elif columns and line:
            is_matrix, columns = False, []
    return Mlc(rates, lines, is_whole and not (columns and last.strip()))
