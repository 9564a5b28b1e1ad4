"""iperf3: TCP between two hosts, by ``-J``.

Source: esnet/iperf, ``src/iperf_api.c``. Rates are in bits per second, round trips in us; what counts is what the
receiver saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterbench.errors import ToolError
from clusterbench.tools._json import document, figure

BOTH_WAYS = "iperf3 ran both ways at once (--bidir), and one figure cannot hold two: run each way, with -R"


@dataclass(frozen=True)
class IperfResult:
    """``retransmits`` and ``round_trip_s`` are None where the sender's kernel does not say."""

    bytes_per_s: float
    seconds: float
    num_streams: int
    retransmits: int | None
    round_trip_s: float | None


def parse(text: str) -> IperfResult:
    """The sums over all streams of one run.

    Raises
    ------
    ToolError
        If it reports an error, is cut, moved nothing, ran both ways at once (``--bidir``), or lacks a sum; or if rate,
        bytes and seconds contradict.
    """
    report = document("iperf3", text)
    if "error" in report:
        raise ToolError(f"iperf3 reports: {report['error']}")
    rate = figure("iperf3", report, "end.sum_received.bits_per_second") / 8
    seconds = figure("iperf3", report, "end.sum_received.seconds")
    moved = figure("iperf3", report, "end.sum_received.bytes")
    if not rate or abs(rate * seconds - moved) > 0.02 * moved:
        raise ToolError(f"iperf3 printed {moved:.6g} bytes in {seconds:.6g} s and a rate of {rate:.6g} B/s")
    streams = report["end"].get("streams")
    if not isinstance(streams, list) or not streams:
        raise ToolError("iperf3 printed no 'end.streams'")
    if any("bidir" in name for name in report["end"]) or _streams_asked_for(report) not in (None, len(streams)):
        raise ToolError(BOTH_WAYS)
    senders = [stream.get("sender", {}) for stream in streams]
    trips = [figure("iperf3", sender, "mean_rtt") / 1e6 for sender in senders if "mean_rtt" in sender]
    sent = report["end"].get("sum_sent", {})
    retransmits = int(figure("iperf3", sent, "retransmits")) if "retransmits" in sent else None
    return IperfResult(rate, seconds, len(streams), retransmits, sum(trips) / len(trips) if any(trips) else None)


def _streams_asked_for(report: Mapping[str, Any]) -> object:
    """How many one way; None where it is not printed. Up to 3.10 two sums of one name are all that tells both ways."""
    start = report.get("start")
    asked = start.get("test_start") if isinstance(start, dict) else None
    return asked.get("num_streams") if isinstance(asked, dict) else None
