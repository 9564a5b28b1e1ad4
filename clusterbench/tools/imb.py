"""Intel MPI Benchmarks: the tables of IMB-MPI1 and its kin.

Source: intel/mpi-benchmarks, ``src_c/IMB_output.c``: times are in us; MB are 1e6 bytes since version 2018, and 2**20
before. The times of several ranks are the least, the most and the mean over ranks of each one's mean; a rate is the
bytes of the pattern over the most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterbench.errors import ToolError
from clusterbench.tools._text import number

_TITLE = re.compile(r"# Benchmarking (?:Multi-)?(?P<name>\w+)")
_RANKS = re.compile(r"# #processes = (?P<ranks>\d+)")
_GROUPS = re.compile(r"# \( ?(?P<groups>\d+) groups of (?P<ranks>\d+) processes each running simultaneous\w* ?\)")
_WAITING = re.compile(r"# \( ?(?P<waiting>\d+) additional processes? waiting in MPI_Barrier ?\)")
_MODE = re.compile(r"# +MODE: (?P<mode>[\w-]+)")
_LEFT_OUT = re.compile(r"\d+ +(?P<why>out-of-mem\.|time-out\.|int-overflow\.)")
_TIMES = {
    "t[usec]": "",
    "t_avg[usec]": "",
    "t_ovrl[usec]": "",
    "t_min[usec]": "min",
    "t_max[usec]": "max",
    "t_pure[usec]": "communication",
}
_RATE, _MESSAGES, _DEFECTS = "Mbytes/sec", "Msg/sec", "defects"
_PATTERNS = {"PingPong": 1, "PingPing": 1, "Sendrecv": 2, "Exchange": 4}
"""How often a row's bytes are counted in its rate."""
_UNITS = (1e6, 2.0**20)
_LIKENESS, _ROUNDED_S, _ROUNDED_PER_S = 0.02, 0.006e-6, 0.006
_WELL_PRINTED = 5.0  # MB/s: half of a hundredth is one in a thousand of it


@dataclass(frozen=True)
class Row:
    """``times_s`` by statistic: empty for the mean over ranks, ``min``, ``max``, ``communication``."""

    line: int
    size_bytes: int | None
    times_s: Mapping[str, float]
    bytes_per_s: float | None
    messages_per_s: float | None


@dataclass(frozen=True)
class Table:
    """One benchmark on so many ranks in all its groups; ``waiting`` ranks did nothing meanwhile."""

    name: str
    ranks: int
    groups: int = 1
    waiting: int = 0
    mode: str = ""
    rows: tuple[Row, ...] = ()
    unread: tuple[str, ...] = ()
    left_out: tuple[str, ...] = field(default=())


def is_imb(text: str) -> bool:
    return "#repetitions" in text and _TITLE.search(text) is not None


def parse(text: str) -> tuple[Table, ...]:
    """Every table of the text that has rows.

    Raises
    ------
    ToolError
        If a row does not fit its header, its results were wrong, its rate is not its bytes over its time, or the last
        one may be cut.
    """
    lines = text.split("\n")
    if re.match(r" *\d", lines[-1]):
        raise ToolError(f"the last line has no end, so it may be cut in the middle of a number: {lines[-1].strip()!r}")
    tables = [table for table in _tables(lines) if table.rows]
    if not tables:
        raise ToolError("IMB's table has no row")
    return tuple(tables)


def _tables(lines: Sequence[str]) -> Iterator[Table]:
    table: Table | None = None
    columns: list[str] = []
    rows: list[tuple[int, str]] = []
    for index, line in enumerate(map(str.strip, lines), 1):
        title, mode = _TITLE.fullmatch(line), _MODE.fullmatch(line)
        if table and (title or mode):
            yield _filled(table, columns, rows)
            columns, rows = [], []
        if title:
            table = Table(title["name"], 0)
        elif table is None:
            continue
        elif mode:
            table = replace(table, mode=mode["mode"], left_out=())
        elif ranks := _RANKS.fullmatch(line):
            table = replace(table, ranks=int(ranks["ranks"]))
        elif groups := _GROUPS.fullmatch(line):
            table = replace(table, ranks=int(groups["groups"]) * int(groups["ranks"]), groups=int(groups["groups"]))
        elif waiting := _WAITING.fullmatch(line):
            table = replace(table, waiting=int(waiting["waiting"]))
        elif "#repetitions" in line:
            columns = line.split()
        elif left_out := _LEFT_OUT.match(line):
            table = replace(table, left_out=(*table.left_out, left_out[0]))
        elif columns and re.match(r"\d++(?!:)", line):
            rows.append((index, line))
    if table:
        yield _filled(table, columns, rows)


def _filled(table: Table, columns: Sequence[str], lines: Sequence[tuple[int, str]]) -> Table:
    if lines and not table.ranks:
        raise ToolError(f"IMB does not say on how many processes {table.name} ran")
    cells = [_cells(columns, line) for _, line in lines]
    unit = _unit(table.name, cells)
    rows = tuple(_row(each, index, line, unit) for each, (index, line) in zip(cells, lines, strict=True))
    for row, (_, line) in zip(rows, lines, strict=True):
        if not _agrees(table.name, row, unit):
            raise ToolError(f"IMB printed a rate that is not its bytes over its time: {line!r}")
    rows = tuple(_unrounded(table.name, row, unit) for row in rows)
    known = ("#bytes", "#repetitions", _RATE, _MESSAGES, _DEFECTS, *_TIMES)
    return replace(table, rows=rows, unread=tuple(column for column in columns if column not in known))


def _cells(columns: Sequence[str], line: str) -> dict[str, str]:
    cells = line.split()
    if len(cells) != len(columns):
        raise ToolError(f"IMB printed a row that does not fit its header: {line!r}")
    by_name = dict(zip(columns, cells, strict=True))
    if number("IMB", by_name.get(_DEFECTS, "0"), line):
        raise ToolError(f"IMB's check found defects, so its figures are of wrong results: {line!r}")
    return by_name


def _unit(name: str, cells: Sequence[Mapping[str, str]]) -> float:
    """Bytes of a MB: those that the row with the highest rate agrees with; 1e6 where no row can tell."""
    fast = max(cells, key=lambda each: float(each.get(_RATE, 0)), default={})
    likely = [unit for unit in _UNITS if fast and _agrees(name, _row(fast, 0, "", unit), unit)]
    return likely[0] if likely else _UNITS[0]


def _row(cells: Mapping[str, str], index: int, line: str, unit: float) -> Row:
    size = cells.get("#bytes")
    if size is not None and not size.isdecimal():
        raise ToolError(f"IMB printed {size!r} where a size belongs: {line!r}")
    rate, messages = cells.get(_RATE), cells.get(_MESSAGES)
    return Row(
        index,
        None if size is None else int(size),
        {
            statistic: number("IMB", cells[column], line) / 1e6
            for column, statistic in _TIMES.items()
            if column in cells
        },
        None if rate is None else number("IMB", rate, line) * unit,
        None if messages is None else number("IMB", messages, line),
    )


def _unrounded(name: str, row: Row, unit: float) -> Row:
    """A row with its rate by bytes and time, or messages, where hundredths of a MB/s tell less than one in 1,000."""
    expected = _expected_rate(name, row)
    if row.bytes_per_s is None or not expected or row.bytes_per_s >= _WELL_PRINTED * unit:
        return row
    return replace(row, bytes_per_s=expected)


def _expected_rate(name: str, row: Row) -> float | None:
    """Bytes a second by messages, or by time where the pattern is known."""
    if row.size_bytes is None:
        return None
    if row.messages_per_s is not None:
        return row.size_bytes * row.messages_per_s
    time_s = row.times_s.get("max", row.times_s.get(""))
    return _PATTERNS[name] * row.size_bytes / time_s if name in _PATTERNS and time_s else None


def _agrees(name: str, row: Row, unit: float) -> bool:
    """Whether a rate is what follows from size and time or messages, as far as the pattern is known."""
    expected = _expected_rate(name, row)
    if row.bytes_per_s is None or row.size_bytes is None or expected is None:
        return True
    rounded = _ROUNDED_PER_S * unit
    if row.messages_per_s is not None:
        return abs(row.bytes_per_s - expected) <= _LIKENESS * expected + rounded + row.size_bytes
    time_s = row.times_s.get("max", row.times_s.get("", 0.0))
    return abs(row.bytes_per_s - expected) <= (_LIKENESS + _ROUNDED_S / time_s) * expected + rounded
