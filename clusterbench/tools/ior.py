"""IOR: each phase of writing or reading a file system, as printed for people.

Source: hpc/ior, ``src/ior-output.c`` (3.2 to 4.1) and ``src/ior.c`` (2.10 to 3.1: a ``Summary:`` and no IOPS): a rate
is all bytes over the time from the first open to the last close; a MiB is 2**20 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import count, number, positive

_HEADER = ("access", "bw(MiB/s)", "total(s)", "iter")
_OPTION = re.compile(r"(?P<name>[a-zA-Z][\w ]*?) *[:=] *(?P<value>.*)")
_CLIENTS = re.compile(r"(?P<tasks>\d+) \((?P<per_node>\d+) per node\)")
_BEGINS = re.compile(r"Options:|Summary:")
_TABLE_ENDS = re.compile(r"Max (?:Write|Read):|Summary of all tests:|Operation +Max")
WRONG = re.compile(r"(?:ior )?WARNING: Incorrect data on (?P<phase>write|read)\b.*")
ERROR = re.compile(r"(?:ior )?ERROR: .*")
LESS = ("stonewallingTime", "Using stonewalling", "WARNING: Using actual aggregate bytes moved")
"""By these a phase may have moved other bytes than it was asked for."""
_SIZE = re.compile(r"(?P<count>[\d.]+) (?P<unit>bytes|MiB|GiB|TiB)")
_UNITS = {"bytes": 1.0, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_MARK = "XXCEL"
"""What 2.10 writes behind a row, for a spreadsheet."""
_LIKENESS, _ROUNDED_S = 0.02, 1e-6


@dataclass(frozen=True)
class Phase:
    """One phase of one repetition; ``operations_per_s`` counts transfers, and is None before version 3.3."""

    line: int
    name: str
    bytes_per_s: float
    operations_per_s: float | None
    seconds: float


@dataclass(frozen=True)
class Test:
    """What one test was asked for, and its phases; ``error`` is the line, and the text, on which it gave up.

    ``wrong`` names phases whose data were not what was written.
    """

    line: int
    options: Mapping[str, str]
    ranks: int
    num_nodes: int
    phases: tuple[Phase, ...]
    wrong: frozenset[str]
    error: tuple[int, str] | None


def is_ior(text: str) -> bool:
    return any(_is_header(line) for line in text.splitlines()) or re.search(r"(?m)^ *IOR-\d", text) is not None


def _is_header(line: str) -> bool:
    columns = line.split()
    return all(name in columns for name in _HEADER)


def parse(text: str) -> tuple[Test, ...]:
    """Every test of the text.

    Raises
    ------
    ToolError
        If it holds none, one does not say on how many ranks it ran or has neither a phase nor an error, a row does not
        fit its header, a rate is not the bytes over the time, or the last row may be cut.
    """
    lines = [line.strip() for line in text.split("\n")]
    if re.match(r"(?:write|read)\b", lines[-1]):
        raise ToolError(f"the last line has no end, so it may be cut in the middle of a number: {lines[-1]!r}")
    begins = [index for index, line in enumerate(lines) if _BEGINS.fullmatch(line)]
    if not begins:
        raise ToolError("IOR's text has no 'Options:', which say on how many ranks it ran")
    ends = [*begins[1:], len(lines)]
    return tuple(_test(begin, lines[begin:end]) for begin, end in zip(begins, ends, strict=True))


def _test(begin: int, lines: Sequence[str]) -> Test:
    options: dict[str, str] = {}
    for line in lines[1:]:
        if line == "Results:" or _is_header(line):
            break
        if option := _OPTION.fullmatch(line):
            options.setdefault(option["name"], option["value"])
    ranks, num_nodes = ranks_of(options, begin + 1)
    expected = None if any(word in line for word in LESS for line in lines) else size_of(options)
    phases = tuple(_phases(begin + 1, lines, expected))
    errors = [(index, line) for index, line in enumerate(lines, begin + 1) if ERROR.fullmatch(line)]
    if not phases and not errors:
        raise ToolError(f"IOR's test of line {begin + 1} has no result: it did not end, or it is cut")
    wrong = frozenset(found["phase"] for line in lines if (found := WRONG.fullmatch(line)))
    return Test(begin + 1, options, ranks, num_nodes, phases, wrong, errors[0] if errors else None)


def ranks_of(options: Mapping[str, str], line: int) -> tuple[int, int]:
    """Ranks and nodes of the test that begins on a line."""
    if clients := _CLIENTS.fullmatch(options.get("clients", "")):
        tasks, per_node, nodes = clients["tasks"], clients["per_node"], ""
    elif options.get("tasks", "").isdecimal():
        tasks, nodes, per_node = options["tasks"], options.get("nodes", ""), options.get("clients per node", "")
    else:
        raise ToolError(f"IOR's test of line {line} does not say on how many ranks it ran")
    if not nodes and not per_node:
        raise ToolError(f"IOR's test of line {line} does not say on how many nodes it ran")
    num_ranks = count("IOR", tasks, f"tasks: {tasks}")
    if nodes:
        return num_ranks, count("IOR", nodes, f"nodes: {nodes}")
    return num_ranks, -(-num_ranks // count("IOR", per_node, f"clients per node: {per_node}"))


def size_of(options: Mapping[str, str]) -> float | None:
    """Bytes of all ranks together, where a test says them."""
    size = _SIZE.fullmatch(options.get("aggregate filesize", ""))
    return float(size["count"]) * _UNITS[size["unit"]] if size else None


def _phases(begin: int, lines: Sequence[str], expected: float | None) -> Iterator[Phase]:
    columns: list[str] = []
    for index, line in enumerate(lines, begin):
        if _is_header(line):
            columns = line.split()
        elif _TABLE_ENDS.match(line):
            columns = []
        elif columns and re.match(r"(?:write|read)\s", line):
            yield _phase(index, columns, line, expected)


def _phase(index: int, columns: Sequence[str], line: str, expected: float | None) -> Phase:
    cells = line.removesuffix(_MARK).split()
    if len(cells) != len(columns):
        raise ToolError(f"IOR printed a row that does not fit its header: {line!r}")
    row = dict(zip(columns, cells, strict=True))
    rate, seconds = (positive("IOR", row[name], line) for name in ("bw(MiB/s)", "total(s)"))
    operations = row.get("IOPS", "-")
    per_s = None if operations == "-" else number("IOR", operations, line)
    phase = Phase(index, row["access"], rate * 2.0**20, per_s, seconds)
    expect_its_bytes(phase, expected, _ROUNDED_S, repr(line))
    return phase


def expect_its_bytes(phase: Phase, expected: float | None, rounded_s: float, place: str) -> None:
    """Refuses a rate that is not the bytes of the file over the time, which is rounded to ``rounded_s``."""
    far = abs(phase.bytes_per_s * phase.seconds - expected) if expected else 0.0
    if expected and far > _LIKENESS * expected + rounded_s * phase.bytes_per_s:
        raise ToolError(f"IOR printed a rate that is not the bytes of its file over its time: {place}")
