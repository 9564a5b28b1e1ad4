"""OSU micro-benchmarks: the tables of ``osu_bw``, ``osu_latency``, ``osu_allreduce`` and their kin.

Source: mvapich.cse.ohio-state.edu/benchmarks, ``c/util``. MB are 1e6 bytes, latencies are in us. The size is of one
message; of a collective it is what each rank hands in for one receiver or all, as the MPI call counts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterbench.errors import ToolError
from clusterbench.tools._text import number

_TITLE = re.compile(r"# (?P<title>OSU (?:MPI|OpenSHMEM|UPC|NCCL|RCCL|xCCL)\S* .+?) Test v(?P<version>\d+[\w.]*)\s*")
_PAIRS = re.compile(r"# \[ pairs: (?P<pairs>\d+) \] \[ window size: (?P<window>\d+) \]\s*")
_BUFFERS = re.compile(r"# Send Buffer on \w+ \((?P<send>\w+)\) and Receive Buffer on \w+ \((?P<receive>\w+)\)\s*")
_DATATYPE = re.compile(r"# Datatype: (?P<datatype>\w+)\.?\s*")
_HEADER = re.compile(r"#?\s*(?:Size  .*|(?:Avg Latency|Overall)\(us\)  .*)")
_STARTUP = re.compile(r".*MPI startup\(\): +(?P<rank>\d+) +\d+ +(?P<host>\S+) +\S.*")
_LATENCIES = {
    "Latency (us)": "",
    "Avg Latency(us)": "",
    "Overall(us)": "",
    "Min Latency(us)": "min",
    "Max Latency(us)": "max",
    "Pure Comm.(us)": "communication",
}
_WELL_PRINTED = 5e6  # B/s: half of a hundredth of a MB/s is one in a thousand of it
_TAIL = re.compile(r"(?P<percentile>P\d+)[ \w]*\(us\)")


@dataclass(frozen=True)
class Row:
    """``latencies_s`` by statistic: empty for the mean, which of a non-blocking call is of all of it, ``min``, ``max``,
    ``p99``, ``communication``.
    """

    line: int
    size_bytes: int | None
    latencies_s: Mapping[str, float]
    bytes_per_s: float | None
    messages_per_s: float | None


@dataclass(frozen=True)
class Table:
    """One test: ``title`` without ``OSU``; ``buffers`` is ``D D``, ``H D`` or empty where it does not say."""

    title: str
    version: str
    rows: tuple[Row, ...] = ()
    pairs: int | None = None
    window: int | None = None
    buffers: str = ""
    datatype: str = ""
    unread: tuple[str, ...] = field(default=())


def is_osu(text: str) -> bool:
    return any(map(_TITLE.fullmatch, map(str.strip, text.splitlines())))


def hosts(text: str) -> tuple[str, ...]:
    """The host of each rank, where Intel's MPI lists them all; else nothing."""
    found = {int(said["rank"]): said["host"] for line in text.splitlines() if (said := _STARTUP.fullmatch(line))}
    return tuple(found[rank] for rank in sorted(found)) if sorted(found) == [*range(len(found))] else ()


def parse(text: str) -> tuple[Table, ...]:
    """Every table of the text that has rows.

    Raises
    ------
    ToolError
        If a row does not fit its header, a validation failed, a figure is not possible, or the last row may be cut.
    """
    lines = text.split("\n")
    # Figures have two digits behind the point: a row that has them is whole, also without an end.
    if re.match(r"\s*\d", lines[-1]) and not re.search(r"\.\d\d\s*$", lines[-1]):
        raise ToolError(f"the last line has no end, so it may be cut in the middle of a number: {lines[-1].strip()!r}")
    tables = [table for table in _tables(lines) if table.rows]
    if not tables:
        raise ToolError("OSU's table has no row")
    return tuple(tables)


def _tables(lines: Sequence[str]) -> Iterator[Table]:
    said: dict[str, object] = {}
    about: dict[str, object] = {}
    columns: list[str] = []
    rows: list[Row] = []
    for index, line in enumerate(map(str.strip, lines), 1):
        if title := _TITLE.fullmatch(line):
            if said:
                yield Table(rows=tuple(rows), unread=_unread(columns), **(said | about))  # type: ignore[arg-type]
            said = {"title": title["title"].removeprefix("OSU "), "version": title["version"]}
            about, columns, rows = {}, [], []
        elif pairs := _PAIRS.fullmatch(line):
            about |= {"pairs": int(pairs["pairs"]), "window": int(pairs["window"])}
        elif buffers := _BUFFERS.fullmatch(line):
            about["buffers"] = f"{buffers['send']} {buffers['receive']}"
        elif datatype := _DATATYPE.fullmatch(line):
            about["datatype"] = datatype["datatype"]
        elif said and _HEADER.fullmatch(line):
            columns = [cell.strip() for cell in re.split(r"\s{2,}", line.lstrip("# ").strip())]
        elif columns and re.match(r"\d++(?!:)", line):
            rows.append(_row(columns, line, index))
    if said:
        yield Table(rows=tuple(rows), unread=_unread(columns), **(said | about))  # type: ignore[arg-type]


def _statistic(column: str) -> str | None:
    tail = _TAIL.fullmatch(column)
    return tail["percentile"].lower() if tail else _LATENCIES.get(column)


def _unread(columns: Sequence[str]) -> tuple[str, ...]:
    known = ("Size", "Bandwidth (MB/s)", "MB/s", "Messages/s", "Validation", "Iterations")
    return tuple(column for column in columns if column not in known and _statistic(column) is None)


def _row(columns: Sequence[str], line: str, index: int) -> Row:
    cells = line.split()
    if len(cells) != len(columns):
        raise ToolError(f"OSU printed a row that does not fit its header: {line!r}")
    by_name = dict(zip(columns, cells, strict=True))
    if by_name.get("Validation", "Pass") not in ("Pass", "-"):
        raise ToolError(f"OSU's validation failed, so its figures are of wrong results: {line!r}")
    size = by_name.get("Size")
    if size is not None and not size.isdecimal():
        raise ToolError(f"OSU printed {size!r} where a size belongs: {line!r}")
    latencies = {
        statistic: number("OSU", cell, line) / 1e6
        for column, cell in by_name.items()
        if (statistic := _statistic(column)) is not None
    }
    rate = by_name.get("Bandwidth (MB/s)", by_name.get("MB/s"))
    bytes_per_s = None if rate is None else number("OSU", rate, line) * 1e6
    messages = by_name.get("Messages/s")
    messages_per_s = None if messages is None else number("OSU", messages, line)
    if "" not in latencies and bytes_per_s is None:
        raise ToolError(f"OSU's table has neither a latency nor a bandwidth: {', '.join(columns)}")
    if size and bytes_per_s and messages_per_s and not _agree(int(size) * messages_per_s, bytes_per_s):
        raise ToolError(f"OSU printed a bandwidth that is not its size times its messages: {line!r}")
    if size and messages_per_s and bytes_per_s is not None and bytes_per_s < _WELL_PRINTED:
        bytes_per_s = int(size) * messages_per_s
    return Row(index, None if size is None else int(size), latencies, bytes_per_s, messages_per_s)


def _agree(by_messages: float, bytes_per_s: float) -> bool:
    return abs(by_messages - bytes_per_s) <= 0.02 * bytes_per_s + 1e4  # MB/s are rounded to two digits
