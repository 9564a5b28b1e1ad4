"""ucx_perftest: two processes of UCX over any of its transports.

Source: openucx/ucx, ``src/tools/perf``. Its last line begins with ``Final:``, or with ``-f`` is the only that begins
with a number: iterations, percentile, average and overall latency in us, average and overall bandwidth, average and
overall message rate. What it calls MB/s is MiB/s: 1 MiB every 108.010 us is printed as 9258.44.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, number, positive, starts_with_figure, whole_lines

_HEADER = re.compile(r"(latency|overhead) \(usec\)\s*\|\s*bandwidth \(MB/s\)\s*\|\s*message rate \(msg/s\)")
_FIGURES = 8
_ROUNDED_PER_S, _ROUNDED_S = 0.5, 0.5e-9


@dataclass(frozen=True)
class UcxResult:
    """``typical_s`` is the percentile that was asked for, the median unless told otherwise.

    ``bytes_per_s`` is printed to 0.01 MiB/s and may be zero for messages of a few bytes. ``messages_per_s`` is one over
    the mean: what is printed of it is a whole number, and large messages are few.
    """

    iterations: int
    typical_s: float
    mean_s: float
    bytes_per_s: float
    messages_per_s: float


def parse(text: str) -> UcxResult:
    """The overall figures of one test.

    Raises
    ------
    ToolError
        If the table's header or its final line is missing or cut.
    """
    lines = whole_lines(text)
    header = next((index for index, line in enumerate(lines) if _HEADER.search(line)), None)
    if header is None:
        raise ToolError(f"ucx_perftest printed no table that can be read: {end_of(text)}")
    below = [line.removeprefix("Final:") for line in lines[header + 1 :]]
    rows = [line.split() for line in below if starts_with_figure(line)]
    if not rows:
        raise ToolError(f"ucx_perftest printed no final line: {end_of(text)}")
    cells = rows[-1]
    line = " ".join(cells)
    if cut := [row for row in rows if len(row) != _FIGURES]:
        raise ToolError(f"ucx_perftest printed a line of {len(cut[0])} figures, not {_FIGURES}: {' '.join(cut[0])!r}")
    iterations, typical_us, overall_us = (positive("ucx_perftest", cells[at], line) for at in (0, 1, 3))
    mebibytes, rate = (number("ucx_perftest", cells[at], line) for at in (5, 7))
    mean_s = overall_us / 1e6
    if abs(rate * mean_s - 1) > 0.02 + _ROUNDED_PER_S * mean_s + _ROUNDED_S / mean_s:
        raise ToolError(f"ucx_perftest printed {rate:g} messages a second, one every {overall_us:g} us: {line!r}")
    return UcxResult(int(iterations), typical_us / 1e6, mean_s, mebibytes * 2**20, 1 / mean_s)
