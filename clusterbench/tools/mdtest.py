"""mdtest: how many files and directories are made, looked at and removed in a second.

Source: hpc/ior, ``src/mdtest.c`` (1.9 to 4.1). A rate is of all ranks; max, min and mean are over iterations. A rate of
zero is of a phase that was not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import count, number

_LAUNCHED = re.compile(r"mdtest-\S+ was launched with (?P<ranks>\d+) total task\(s\) on (?P<nodes>\d+) node\(?s?\)?")
_TASKS = re.compile(r"(?P<ranks>\d+) tasks, (?P<items>\d+ (?:files/directories|files?|directories))")
_SUMMARY = re.compile(r"SUMMARY(?: (?P<what>rate|time))?(?: \([^)]*\))?: \(of (?P<iterations>\d+) iterations\)")
_COLUMNS = re.compile(r"Max|Min|Mean|Std Dev")
"""Where figures of each rank stand before those of all, these begin with the last ``Max``."""
_ROW = re.compile(r"(?P<name>(?:File|Directory|Tree) \w+) *:? +(?P<cells>[\d.].*)")
_ERROR = re.compile(r".*\b(?:FAILED in \w+|ERROR: ).*")
_WRONG = "ERROR: verifying the data on read"


@dataclass(frozen=True)
class Operation:
    line: int
    name: str
    max_per_s: float
    min_per_s: float
    mean_per_s: float


@dataclass(frozen=True)
class Run:
    """``items`` are how many of what; ``error`` is the line, and the text, of what went wrong."""

    line: int
    ranks: int
    num_nodes: int
    items: str
    iterations: int
    operations: tuple[Operation, ...]
    reads_wrong: bool
    error: tuple[int, str] | None


def is_mdtest(text: str) -> bool:
    return _LAUNCHED.search(text) is not None


def parse(text: str) -> tuple[Run, ...]:
    """Every run of the text.

    Raises
    ------
    ToolError
        If it does not say on how many ranks it ran, one has neither a summary nor an error, a row does not fit its
        header, its mean is not between least and most, or the last row may be cut.
    """
    lines = [line.strip() for line in text.split("\n")]
    if _ROW.match(lines[-1]):
        raise ToolError(f"the last line has no end, so it may be cut in the middle of a number: {lines[-1]!r}")
    begins = [index for index, line in enumerate(lines) if _LAUNCHED.match(line)]
    if not begins:
        raise ToolError("mdtest's text has no line that begins with 'mdtest-' and says on how many ranks it ran")
    ends = [*begins[1:], len(lines)]
    return tuple(run for begin, end in zip(begins, ends, strict=True) for run in _runs(begin, lines[begin:end]))


def _runs(begin: int, lines: Sequence[str]) -> Iterator[Run]:
    """One for each number of tasks, which is mostly one."""
    launched = _LAUNCHED.match(lines[0])
    assert launched is not None
    tasks = [index for index, line in enumerate(lines) if _TASKS.match(line)] or [0]
    for first, last in zip(tasks, [*tasks[1:], len(lines)], strict=True):
        said = _TASKS.match(lines[first])
        of_all, nodes = (count("mdtest", launched[name], lines[0]) for name in ("ranks", "nodes"))
        ranks = count("mdtest", said["ranks"], lines[first]) if said else of_all
        if ranks > of_all:
            raise ToolError(f"mdtest ran with {ranks} of {of_all} tasks: {lines[first]!r}")
        yield _run(begin + first, lines[first:last], ranks, nodes, said["items"] if said else "")


def _run(begin: int, lines: Sequence[str], ranks: int, num_nodes: int, items: str) -> Run:
    iterations = 0
    operations: tuple[Operation, ...] = ()
    for offset, line in enumerate(lines):
        if (summary := _SUMMARY.match(line)) and summary["what"] != "time":
            iterations = count("mdtest", summary["iterations"], line)
            operations = tuple(_operations(begin + offset + 1, lines[offset + 1 :]))
    errors = [(index, line) for index, line in enumerate(lines, begin + 1) if _ERROR.fullmatch(line)]
    if not operations and not errors:
        raise ToolError(f"mdtest's run of line {begin + 1} has no summary of rates: it did not end, or it is cut")
    wrong = [each for each in errors if _WRONG in each[1]]
    failed = [each for each in errors if each not in wrong]
    return Run(
        line=begin + 1,
        ranks=ranks,
        num_nodes=min(num_nodes, ranks),
        items=items,
        iterations=iterations,
        operations=operations,
        reads_wrong=bool(wrong),
        error=failed[0] if failed else None,
    )


def _operations(begin: int, lines: Sequence[str]) -> Iterator[Operation]:
    columns: list[str] = []
    for index, line in enumerate(lines, begin + 1):
        if _SUMMARY.match(line):
            return
        if line.startswith("Operation"):
            columns = _COLUMNS.findall(line)
            skipped = len(columns) - 1 - columns[::-1].index("Max") if "Max" in columns else 0
        elif columns and (row := _ROW.fullmatch(line)):
            cells = row["cells"].split()
            if len(cells) != len(columns):
                raise ToolError(f"mdtest printed a row that does not fit its header: {line!r}")
            most, least, mean = (number("mdtest", cell, line) for cell in cells[skipped : skipped + 3])
            if not least <= mean <= most:
                raise ToolError(f"mdtest printed a mean that is not between least and most: {line!r}")
            yield Operation(index, row["name"], most, least, mean)
