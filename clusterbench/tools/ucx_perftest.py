"""ucx_perftest: two processes of UCX over any of its transports.

Source: openucx/ucx, ``src/tools/perf``. Its last line begins with ``Final:``, or with ``-f`` is the only that begins
with a number: iterations, percentile, average and overall latency in us, average and overall bandwidth, average and
overall message rate. What it calls MB/s is MiB/s: 1 MiB every 108.010 us is printed as 9258.44.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError

_FINAL = re.compile(r"^\s*(?:Final:)?\s*(\d+)((?:\s+\d+(?:\.\d+)?){7})\s*$", re.MULTILINE)
_HEADER = re.compile(r"(latency|overhead) \(usec\)\s*\|\s*bandwidth \(MB/s\)\s*\|\s*message rate \(msg/s\)")


@dataclass(frozen=True)
class UcxResult:
    """``typical_s`` is the percentile that was asked for, the median unless told otherwise."""

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
    if not _HEADER.search(text):
        raise ToolError(f"ucx_perftest printed no table that can be read: {_end(text)}")
    lines = _FINAL.findall(text)
    if not lines:
        raise ToolError(f"ucx_perftest printed no final line: {_end(text)}")
    iterations, figures = lines[-1]
    typical_us, _, overall_us, _, mebibytes, _, rate = map(float, figures.split())
    return UcxResult(int(iterations), typical_us / 1e6, overall_us / 1e6, mebibytes * 2**20, rate)


def _end(text: str) -> str:
    return repr(text.strip()[-200:])
