"""perftest: ``ib_write_bw`` and its kin, the table that each of them prints.

Source: linux-rdma/perftest, ``src/perftest_parameters.c``. Bandwidths are in MiB/s, which older versions
call ``MB/sec``, or with ``--report_gbits`` in Gb/s; the unit is taken from the header. In both directions bandwidth and
message rate are sums of the two; before 2013 the rate was of one. ``t_stdev`` is left alone: perftest computes it from
whole microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, number, positive, starts_with_figure, whole_lines

_COLUMN = re.compile(r"#\w+|tps average|[^\s\[\]]+(?: [^\s\[\]]+)?\[[^\]\s]+\]")
_BYTES_PER_S = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_ROUNDED_MESSAGES_PER_S = 0.5
_ROUNDED_UNITS = 0.005
_WELL_PRINTED = 1000 * _ROUNDED_UNITS
_LIKENESS = 0.01
_PRECISE_MESSAGES_PER_S = 1000.0
_END_OF_BANDWIDTH, _END_OF_LATENCY = re.compile(r"\.\d{6}$"), re.compile(r"\.\d\d$")
"""A row that ends so is whole, also without a line break behind it."""


@dataclass(frozen=True)
class Bandwidth:
    """One row of a bandwidth test; both directions together where the test is bidirectional.

    ``bytes_per_s`` is printed in hundredths of its unit: of small messages one way it is size times rate, which
    tells more. ``peak_bytes_per_s`` is None where perftest did not look for it, which it then prints as zero.
    ``messages_per_s`` is printed in whole ones a second: of few large messages it is the bandwidth over the size.
    """

    size_bytes: int
    iterations: int
    bytes_per_s: float
    peak_bytes_per_s: float | None
    messages_per_s: float


@dataclass(frozen=True)
class Latency:
    """One row of a latency test: half a round trip of a write or a send, a whole one of a read.

    ``typical_s`` is the median. perftest drops the two slowest messages; ``max_s`` is the slowest that it kept.
    """

    size_bytes: int
    iterations: int
    min_s: float
    max_s: float
    typical_s: float
    mean_s: float
    p99_s: float
    p999_s: float


@dataclass(frozen=True)
class MeanLatency:
    """One row of a latency test that ran for a time (``-D``), of which perftest keeps the mean alone."""

    size_bytes: int
    iterations: int
    mean_s: float


Row = Bandwidth | Latency | MeanLatency


def parse(text: str) -> tuple[Row, ...]:
    """The rows of the table, by size, each once: where server and client print into one file, both print them.

    Raises
    ------
    ToolError
        If there is no table, a header or a row cannot be read or may be cut, or two rows of one size differ; also where
        a bandwidth is not what the row's own message rate gives, as it is where a unit is not what it says.
    """
    columns: list[str] = []
    rows: dict[int, Row] = {}
    for line in (*whole_lines(text), *_unended(text)):
        cells = line.split()
        if "#bytes" in line:
            columns = _columns(line)
        elif columns and starts_with_figure(line):
            row = _row(columns, cells, line, "Bidirectional" in text)
            if rows.setdefault(row.size_bytes, row) != row:
                raise ToolError(
                    f"perftest printed two different rows of {row.size_bytes} bytes: {line.strip()!r}; with "
                    "--run_infinitely it prints a row of each interval: take -D, which prints one, instead"
                )
    if not rows:
        raise ToolError(f"perftest printed no table that can be read: {end_of(text)}")
    return tuple(rows.values())


def _unended(text: str) -> list[str]:
    """The line without an end where it is a row and whole. Raises ToolError where it is one that may be cut."""
    (line,) = whole_lines(text.rpartition("\n")[2] + "\n")
    if not starts_with_figure(line):
        return []
    end = _END_OF_BANDWIDTH if "MsgRate[Mpps]" in text else _END_OF_LATENCY
    if not end.search(line):
        raise ToolError(f"perftest's last line has no end, so it may be cut in a number: {line.strip()!r}")
    return [line]


def _columns(line: str) -> list[str]:
    columns: list[str] = _COLUMN.findall(line)
    bandwidth = {"#bytes", "#iterations", "MsgRate[Mpps]"} <= {*columns} and _unit(columns, "BW average")
    latency = {"#bytes", "#iterations", "t_typical[usec]", "99.9% percentile[usec]"} <= {*columns}
    mean = {"#bytes", "#iterations", "t_avg[usec]"} <= {*columns}
    if _COLUMN.sub("", line).strip() or not (bandwidth or latency or mean):
        raise ToolError(f"perftest printed a header that cannot be read: {line.strip()!r}")
    return columns


def _unit(columns: Sequence[str], name: str) -> str:
    return next((column[len(name) + 1 : -1] for column in columns if column.startswith(f"{name}[")), "")


def _row(columns: Sequence[str], cells: Sequence[str], line: str, bidirectional: bool) -> Row:
    if len(cells) != len(columns) or not (cells[0] + cells[1]).isdigit():
        raise ToolError(f"perftest printed a row that does not fit its header: {line.strip()!r}")
    by_name = dict(zip(columns, cells, strict=True))
    size_bytes, iterations = int(by_name["#bytes"]), int(by_name["#iterations"])
    if "t_typical[usec]" in by_name:
        return _latency(size_bytes, iterations, by_name, line)
    if "t_avg[usec]" in by_name:
        return MeanLatency(size_bytes, iterations, positive("perftest", by_name["t_avg[usec]"], line) / 1e6)
    unit = _unit(columns, "BW average")
    if unit not in _BYTES_PER_S:
        raise ToolError(f"perftest printed bandwidths in '{unit}', which is none of {', '.join(_BYTES_PER_S)}")
    factor = _BYTES_PER_S[unit]
    messages_per_s = number("perftest", by_name["MsgRate[Mpps]"], line) * 1e6
    average = by_name[f"BW average[{unit}]"]
    by_rate = 0.0 if bidirectional else size_bytes * messages_per_s
    rounded = factor * _ROUNDED_UNITS + size_bytes * _ROUNDED_MESSAGES_PER_S
    is_few_hundredths = 0 < by_rate < _WELL_PRINTED * factor
    if is_few_hundredths and abs(number("perftest", average, line) * factor - by_rate) <= rounded:
        bytes_per_s = by_rate
    else:
        bytes_per_s = positive("perftest", average, line) * factor
    row = Bandwidth(
        size_bytes,
        iterations,
        bytes_per_s,
        number("perftest", by_name.get(f"BW peak[{unit}]", "0"), line) * factor or None,
        messages_per_s,
    )
    _agree(row, factor, (1, 2) if bidirectional else (1,), line)
    is_finer = factor * _ROUNDED_UNITS < size_bytes * _ROUNDED_MESSAGES_PER_S
    if row.messages_per_s < _PRECISE_MESSAGES_PER_S and is_finer:
        return replace(row, messages_per_s=row.bytes_per_s / size_bytes)
    return row


def _agree(row: Bandwidth, factor: float, directions: Sequence[int], line: str) -> None:
    """``directions`` of the bandwidth for each that the rate may count."""
    slack = row.size_bytes * _ROUNDED_MESSAGES_PER_S + factor * _ROUNDED_UNITS + _LIKENESS * row.bytes_per_s
    by_rate = row.size_bytes * row.messages_per_s
    if all(abs(row.bytes_per_s - each * by_rate) > each * slack for each in directions):
        raise ToolError(
            f"perftest printed a bandwidth of {row.bytes_per_s:.4g} B/s, but {row.messages_per_s:.4g} messages of "
            f"{row.size_bytes} bytes a second are {by_rate:.4g} B/s: {line.strip()!r}"
        )


def _latency(size_bytes: int, iterations: int, by_name: Mapping[str, str], line: str) -> Latency:
    names = ("t_min", "t_max", "t_typical", "t_avg", "99% percentile", "99.9% percentile")
    cells = [by_name.get(f"{name}[usec]", "") for name in names]
    row = Latency(size_bytes, iterations, *(positive("perftest", cell, line) / 1e6 for cell in cells))
    if not row.min_s <= row.typical_s <= row.max_s:
        raise ToolError(f"perftest printed a median that is not between the extremes: {line.strip()!r}")
    return row
