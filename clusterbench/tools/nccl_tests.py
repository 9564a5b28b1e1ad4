"""nccl-tests: the table of ``all_reduce_perf`` and its kin.

Source: NVIDIA/nccl-tests, ``src/common.cu`` and ``doc/PERFORMANCE.md``. Times are in us, bandwidths in GB/s of 1e9. The
printed size is the whole array, and of ``all_gather`` and others slightly below what was asked for, or 0. Columns after
the time (``#wrong`` or ``error``, percentiles with ``-I``) differ by version and are read by their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, number, positive, starts_with_figure, whole_lines

_WITHOUT_MARK = re.compile(
    r"(?m)^ *(?=(?:nThread \d|Using devices|Rank +\d+ |size +count +type|\(B\) +\(elements\)|Out of bounds values :"
    r"|Avg bus bandwidth|Collective test (?:starting|concluded)))"
)
_STAMPED = re.compile(r"(?m)^# +size +count .* timestamp *$")
_TIME_OF_DAY = re.compile(
    r"(?m)(?:(?<=[#%\w]) +timestamp|(?<=\)) +%Y-%m-%d %H:%M:%S|(?<=[\dA]) +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) *$"
)
_RANK = re.compile(r"(?m)^#\s+Rank\s+(\d+)\s")
_ROUNDED_BANDWIDTH = 0.005e9
_LIKENESS = 0.01
_WELL_PRINTED = 1000 * _ROUNDED_BANDWIDTH


@dataclass(frozen=True)
class Placement:
    """One half of a row. ``wrong`` counts wrong elements; None where results were not checked."""

    time_s: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class NcclRow:
    size_bytes: int
    count: int
    out_of_place: Placement
    in_place: Placement


@dataclass(frozen=True)
class NcclTable:
    """``out_of_bounds`` is the program's own verdict: how many checks failed."""

    rows: tuple[NcclRow, ...]
    out_of_bounds: int


def unrounded(row: NcclRow, factor: float) -> NcclRow:
    """A row with the bandwidths of small calls as nccl-tests works them out, from size and time.

    They are printed in hundredths of a GB/s. Below 5 GB/s that is off by more than one in a thousand, and one that is a
    little lower may be printed as half or as none. ``factor`` is that of the collective from algorithm to bus
    bandwidth; 0 where it is not known, and the printed bus bandwidth stays.

    >>> half = Placement(268.12e-6, 0.02e9, 0.03e9, 0)
    >>> row = unrounded(NcclRow(4096, 1024, half, half), 1.75)
    >>> round(row.in_place.algbw), round(row.in_place.busbw)
    (15276742, 26734298)
    """
    halves = []
    for half in (row.out_of_place, row.in_place):
        algbw = row.size_bytes / half.time_s if half.algbw < _WELL_PRINTED else half.algbw
        busbw = algbw * factor if factor and half.busbw < _WELL_PRINTED else half.busbw
        halves.append(replace(half, algbw=algbw, busbw=busbw))
    return NcclRow(row.size_bytes, row.count, *halves)


def plain_table(text: str) -> str:
    """A text with the ``#`` before each line that is no row, where Markdown took them for headings, and without times.

    Times of day stand behind the rows with ``-S``.

    >>> plain_table("     size  count  type\\n      8     2  float\\n Out of bounds values : 0 OK\\n")
    '# size  count  type\\n      8     2  float\\n# Out of bounds values : 0 OK\\n'
    """
    marked = _WITHOUT_MARK.sub("# ", text)
    return _TIME_OF_DAY.sub("", marked) if _STAMPED.search(marked) else marked


def num_ranks(text: str) -> int:
    """How many ranks the text lists; 0 where it lists none."""
    return len(set(_RANK.findall(text)))


def wrong_rows(text: str) -> list[str]:
    """Rows whose own check found wrong elements, whatever else of a table cannot be read."""
    columns: list[str] = []
    wrong = []
    for line in whole_lines(text):
        cells = line.lstrip("# ").split()
        if line.startswith("#") and cells[:2] == ["size", "count"]:
            columns = cells
        elif columns and starts_with_figure(line):
            try:
                row = _row(columns, cells, line)
            except ToolError:
                continue
            wrong += [line] if row.out_of_place.wrong or row.in_place.wrong else []
    return wrong


def parse(text: str) -> NcclTable:
    """Every row, and the verdict that ends a whole table.

    Raises
    ------
    ToolError
        If the header, its units or the verdict is missing, or a row cannot be read or contradicts itself: its
        algorithm bandwidth must be its size over its time.
    """
    columns: list[str] = []
    rows: list[NcclRow] = []
    verdict: int | None = None
    for line in whole_lines(text):
        cells = line.lstrip("# ").split()
        if line.startswith("#") and cells[:2] == ["size", "count"]:
            columns = cells
            if "cputime" in cells:
                raise ToolError("nccl-tests printed the time of the CPU (-C 1), which is not that of the collective")
        elif line.startswith("#") and cells[:2] == ["(B)", "(elements)"]:
            _expect_units(cells, line)
        elif line.startswith("# Out of bounds values :"):
            verdict = _verdict(cells, line)
        elif columns and starts_with_figure(line):
            rows.append(_row(columns, cells, line))
    if not columns or not rows:
        raise ToolError(f"nccl-tests printed no table that can be read: {end_of(text)}")
    if verdict is None:
        raise ToolError(f"nccl-tests did not finish its table: {end_of(text)}")
    return NcclTable(tuple(rows), verdict)


def _expect_units(cells: Sequence[str], line: str) -> None:
    units = cells[2:]
    half = ["(us)", "(GB/s)", "(GB/s)"]
    if len(units) % 2 or units[:3] != half or units[len(units) // 2 :][:3] != half:
        raise ToolError(f"nccl-tests printed units that are not known: {line.strip()!r}")


def _verdict(cells: Sequence[str], line: str) -> int:
    if len(cells) != 7 or not cells[5].isdigit() or (int(cells[5]) == 0) != (cells[6] == "OK"):
        raise ToolError(f"nccl-tests printed a verdict that cannot be read: {line.strip()!r}")
    return int(cells[5])


def _row(columns: Sequence[str], cells: Sequence[str], line: str) -> NcclRow:
    first = columns.index("time") if "time" in columns else len(columns)
    tail = columns[first:]
    half = len(tail) // 2
    # What is before the time may have blank cells: alltoall has a column redop and nothing in it.
    before = len(cells) - len(tail)
    if half >= 4 and tail[:half] == tail[half:] and 3 <= before + half <= first:
        raise ToolError(
            "nccl-tests printed a row with figures of one placement alone, as the replay of a trace does, and here "
            f"both are read: run the collective's own program, such as all_reduce_perf: {line.strip()!r}"
        )
    if half < 4 or tail[:half] != tail[half:] or not 3 <= before <= first:
        raise ToolError(f"nccl-tests printed a row that does not fit its header: {line.strip()!r}")
    size_bytes, count = (int(number("nccl-tests", cell, line)) for cell in cells[:2])
    halves = [_placement(tail[:half], cells[start : start + half], line) for start in (before, before + half)]
    for placement in halves:
        slack = _ROUNDED_BANDWIDTH + _LIKENESS * placement.algbw
        if abs(placement.algbw - size_bytes / placement.time_s) > slack:
            raise ToolError(f"nccl-tests printed a row whose algbw is not its size over its time: {line.strip()!r}")
    return NcclRow(size_bytes, count, *halves)


def _placement(names: Sequence[str], cells: Sequence[str], line: str) -> Placement:
    by_name = dict(zip(names, cells, strict=True))
    wrong = by_name.get("#wrong", "N/A")  # older versions print the largest deviation instead, judged by the verdict
    return Placement(
        positive("nccl-tests", by_name.get("time", ""), line) / 1e6,
        number("nccl-tests", by_name.get("algbw", ""), line) * 1e9,
        number("nccl-tests", by_name.get("busbw", ""), line) * 1e9,
        None if wrong == "N/A" else int(number("nccl-tests", wrong, line)),
    )
