"""gdrcopy: how fast a CPU writes and reads GPU memory that is mapped into its address space.

Source: NVIDIA/gdrcopy, ``tests/copybw.cpp``, ``copylat.cpp``, ``pplat.cu``. What it calls MB/s is MiB/s. Latencies are
those of the call as the CPU sees it: a write may not have reached the GPU yet, as gdrcopy itself warns. Up to 2.5 they
are printed as means, from 2.6 on as the median and the lowest of the means of some calls each, of which the median is
taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, positive, starts_with_figure, whole_lines

_BANDWIDTH = re.compile(r"(write|read) BW:\s*(\S+?)MB/s")
_SIZE = re.compile(r"(writing|reading) test, size=(\d+) ")
_LATENCY_HEADER = re.compile(r"Test\s+Size\(B\)\s+(?:Avg\.Time\(us\)|(?P<median>Median Time\(us\)\s+Min\. Time\(us\)))")
_ROUND_TRIP = re.compile(
    r"Round-trip latency per iteration is (?:\(min\) (?P<least>\S+), \(median\) )?(?P<typical>\S+) us"
)


@dataclass(frozen=True)
class CopyBandwidth:
    size_bytes: int
    write_bytes_per_s: float
    read_bytes_per_s: float


@dataclass(frozen=True)
class CopyLatency:
    """Times of one call by the bytes that it copies, mean or median; ``write`` is to the GPU."""

    write_s: dict[int, float]
    read_s: dict[int, float]


def parse_copybw(text: str) -> CopyBandwidth:
    """Both bandwidths of one ``gdrcopy_copybw``.

    Raises
    ------
    ToolError
        If one of them is missing, is printed twice, or is no number.
    """
    lines = whole_lines(text)
    sizes = {int(match[2]) for line in lines if (match := _SIZE.search(line))}
    cells = [(match[1], match[2], line) for line in lines if (match := _BANDWIDTH.fullmatch(line.strip()))]
    if len(sizes) != 1 or sorted(kind for kind, _, _ in cells) != ["read", "write"]:
        raise ToolError(f"gdrcopy_copybw printed no write and read bandwidth of one size: {end_of(text)}")
    rates = {kind: positive("gdrcopy_copybw", cell, line) * 2**20 for kind, cell, line in cells}
    return CopyBandwidth(sizes.pop(), rates["write"], rates["read"])


def parse_copylat(text: str) -> CopyLatency:
    """Both tables of one ``gdrcopy_copylat``.

    Raises
    ------
    ToolError
        If there are not two whole tables of the same sizes, each growing twofold.
    """
    tables: dict[str, dict[int, float]] = {"gdr_copy_to_mapping": {}, "gdr_copy_from_mapping": {}}
    headers = times = 0
    for line in whole_lines(text):
        cells = line.split()
        if header := _LATENCY_HEADER.fullmatch(line.strip()):
            headers, times = headers + 1, 2 if header["median"] else 1
        if headers and starts_with_figure(line):
            raise ToolError(f"gdrcopy_copylat printed a row that is broken in two: {line.strip()!r}")
        if not headers or not cells or cells[0] not in tables or cells[1:2] == ["num"]:
            continue
        if len(cells) != 2 + times or not cells[1].isdigit() or int(cells[1]) in tables[cells[0]]:
            raise ToolError(f"gdrcopy_copylat printed a row that cannot be read: {line.strip()!r}")
        typical_us, least_us = (positive("gdrcopy_copylat", cell, line) for cell in (cells[2], cells[-1]))
        if typical_us < least_us:
            raise ToolError(f"gdrcopy_copylat printed a median below the lowest time: {line.strip()!r}")
        tables[cells[0]][int(cells[1])] = typical_us / 1e6
    write_s, read_s = tables.values()
    sizes = [*write_s]
    if headers != 2 or not sizes or sizes != [*read_s] or any(b != 2 * a for a, b in pairwise(sizes)):
        raise ToolError(f"gdrcopy_copylat printed no two whole tables of the same sizes: {end_of(text)}")
    return CopyLatency(write_s, read_s)


def parse_pplat(text: str) -> float:
    """Seconds of one round trip between CPU and GPU, by ``gdrcopy_pplat``: mean or median.

    Raises
    ------
    ToolError
        If it is missing or printed twice, or a median is below the lowest time.
    """
    said = [(match, line) for line in whole_lines(text) if (match := _ROUND_TRIP.fullmatch(line.strip()))]
    if len(said) != 1:
        raise ToolError(f"gdrcopy_pplat printed no round-trip latency: {end_of(text)}")
    match, line = said[0]
    typical_us = positive("gdrcopy_pplat", match["typical"], line)
    if match["least"] and typical_us < positive("gdrcopy_pplat", match["least"], line):
        raise ToolError(f"gdrcopy_pplat printed a median below the lowest time: {line.strip()!r}")
    return typical_us / 1e6
