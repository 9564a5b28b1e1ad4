"""iperf3 as it prints for people: the sums at the end of one run over TCP.

Source: esnet/iperf, ``src/iperf_locale.c`` and ``src/units.c``: bits are counted in powers of 10, bytes in powers of 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._iperf import rate_and_bytes
from clusterbench.tools.iperf3 import BOTH_WAYS

_STREAM = re.compile(r"(?m)^\s*\[ *(\d+)\](?:\[\w+-\w+\])? +(?:local |[\d.]+-[\d.]+ +sec )")
_ENDS = re.compile(r"\[ *\d+\] local (?P<local>\S+) port \d+ connected to (?P<peer>\S+) port \d+")
_SUM = re.compile(
    r"\[ *(?P<stream>\d+|SUM)\](?:\[\w+-\w+\])? +0\.00-(?P<end>[\d.]+) +sec +(?P<moved>[\d.]+) (?P<of>[KMGT]?)Bytes +"
    r"(?P<rate>[\d.]+) (?P<unit>[KMGT]?)(?P<what>bits|Bytes)/sec(?: +(?P<again>\d+))? +(?P<side>sender|receiver)\s*"
)
_DATAGRAMS = re.compile(r"(?m)^\[ ID\] .*Datagrams\s*$")
_ROLE = re.compile(r"(?m)^\s*\[ *(?:\d+|SUM)\]\[(TX|RX)-\w\]")
_LIKENESS = 0.02


@dataclass(frozen=True)
class IperfText:
    """What arrived, over all streams; ``retransmits`` is None where the sender's system does not count them."""

    line: int
    bytes_per_s: float
    seconds: float
    num_streams: int
    retransmits: int | None
    ends: tuple[str, str] | None


def is_iperf3(text: str) -> bool:
    return any(_SUM.fullmatch(line.strip()) for line in text.splitlines()) or (
        "[ ID] Interval" in text and _ENDS.search(text) is not None
    )


def parse(text: str) -> IperfText:
    """The sums of the one run of the text.

    Raises
    ------
    ToolError
        If it holds none or several, ran over UDP or both ways at once, nothing arrived, or the rate is not the bytes
        over the time.
    """
    if _DATAGRAMS.search(text):
        raise ToolError("iperf3 over UDP says how much was sent, which is not how much arrived: -J says it")
    if {*_ROLE.findall(text)} == {"TX", "RX"}:
        raise ToolError(BOTH_WAYS)
    said = [
        (number, sums) for number, line in enumerate(text.splitlines(), 1) if (sums := _SUM.fullmatch(line.strip()))
    ]
    streams = {*_STREAM.findall(text)}  # also those whose sums are behind the end of a text that is cut
    wanted = "SUM" if len(streams) > 1 else next(iter(streams), "")
    arrived = [(number, sums) for number, sums in said if (sums["stream"], sums["side"]) == (wanted, "receiver")]
    if not arrived:
        raise ToolError("the receiver's sum of the iperf3 run is not in the text")
    if len(arrived) > 1:
        raise ToolError(f"the text holds {len(arrived)} runs of iperf3: import each from a file of its own")
    number, sums = arrived[0]
    rate, moved = rate_and_bytes(sums)
    seconds = float(sums["end"])
    if not rate or not moved:
        raise ToolError(f"nothing arrived by what the receiver says: {sums[0].strip()!r}")
    if abs(rate * seconds - moved) > _LIKENESS * moved:
        raise ToolError(f"iperf3 printed a rate that is not its bytes over its time: {sums[0].strip()!r}")
    sent = [sums["again"] for _, sums in said if (sums["stream"], sums["side"]) == (wanted, "sender")]
    ends = _ENDS.search(text)
    return IperfText(
        number,
        rate,
        seconds,
        len(streams),
        int(sent[0]) if sent and sent[0] is not None else None,
        (ends["local"], ends["peer"]) if ends else None,
    )
