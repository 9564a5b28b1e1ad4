"""iperf 2 as it prints for people: the whole time of one run over TCP.

Source: iperf2, ``src/Locale.c`` and ``src/stdio.c`` (2.0.5 to 2.2): bits are counted in powers of 10, bytes in
powers of 2. A client counts what it wrote, a server what arrived.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._iperf import rate_and_bytes

_ENDS = re.compile(r"\[ *(?P<stream>\*?\d+)\] local (?P<local>\S+) port \d+ connected with (?P<peer>\S+) port \d+")
_ROW = re.compile(
    r"\[ *(?P<stream>\*?\d+|SUM)(?:-\d+)?\] +(?P<begin>\d+\.\d+)- *(?P<end>\d+\.\d+) +sec +(?P<moved>[\d.]+) "
    r"(?P<of>[KMGT]?)Bytes +(?P<rate>[\d.]+) (?P<unit>[KMGT]?)(?P<what>bits|Bytes)/sec\b.*"
)
_LIKENESS, _ROUNDED_S = 0.02, 0.05


@dataclass(frozen=True)
class Iperf2:
    """Over all streams; ``side`` is client, server, or empty where the text does not say who counted."""

    line: int
    bytes_per_s: float
    seconds: float
    num_streams: int
    side: str
    ends: tuple[str, str]


def is_iperf2(text: str) -> bool:
    return _ENDS.search(text) is not None and any(_ROW.fullmatch(line.strip()) for line in text.splitlines())


def parse(text: str) -> Iperf2:
    """The one run of the text.

    Raises
    ------
    ToolError
        If it holds none or several, or both directions, ran over UDP, or the rate is not the bytes over the time.
    """
    if re.search(r"Jitter|UDP (?:port|buffer)|UDP connection", text):
        raise ToolError("iperf 2 over UDP: what a client sent is not what arrived, and is not read")
    rows = [(number, row) for number, line in enumerate(text.splitlines(), 1) if (row := _ROW.fullmatch(line.strip()))]
    begins = {(row["stream"], float(row["begin"])) for _, row in rows}
    whole = [
        (number, row)
        for number, row in rows
        if not float(row["begin"]) and (row["stream"], float(row["end"])) not in begins
    ]
    connected = [*_ENDS.finditer(text)]
    streams = {ends["stream"] for ends in connected}
    sums = [each for each in whole if len(streams) < 2 or each[1]["stream"] == "SUM"]
    last = text.split("\n")[-1].strip()
    if last.startswith("[ ") and not _ROW.fullmatch(last):
        raise ToolError(f"the last line has no end, so it may be cut in the middle of a number: {last!r}")
    if len(sums) != 1 or not connected:
        raise ToolError(f"the text holds {len(sums)} sums of iperf 2 over all streams and all of the time, and not one")
    number, row = sums[0]
    rate, moved = rate_and_bytes(row)
    seconds = float(row["end"])
    if not rate or not moved:
        raise ToolError(f"nothing was moved: {row[0].strip()!r}")
    if abs(rate * seconds - moved) > _LIKENESS * moved + _ROUNDED_S * rate:
        raise ToolError(f"iperf 2 printed a rate that is not its bytes over its time: {row[0].strip()!r}")
    ends = connected[0]["local"], connected[0]["peer"]
    return Iperf2(number, rate, seconds, len(streams), _side(text), ends)


def _side(text: str) -> str:
    sides = [
        side for side, word in (("client", "Client connecting to"), ("server", "Server listening on")) if word in text
    ]
    return sides[0] if len(sides) == 1 else ""
