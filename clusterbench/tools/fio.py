"""fio: reads and writes of files, by ``--output-format=json``.

Source: axboe/fio, ``stat.c``. Rates are in B/s (``bw`` is in KiB/s and is left alone), latencies in ns; those of
completion are from the submission of a request to its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._json import document, figure


@dataclass(frozen=True)
class FioResult:
    """One direction of all jobs together, which ``--group_reporting`` makes one."""

    bytes_per_s: float
    requests_per_s: float
    moved_bytes: int
    latency_mean_s: float
    latency_p50_s: float
    latency_p99_s: float


def parse(text: str, direction: str) -> FioResult:
    """The figures of ``direction``, ``read`` or ``write``.

    Raises
    ------
    ToolError
        If a job failed, there is not exactly one, nothing was moved in that direction, or the rate is not the bytes
        over the time.
    """
    report = document("fio", text)
    jobs = report.get("jobs")
    if not isinstance(jobs, list) or len(jobs) != 1 or not isinstance(jobs[0], dict):
        raise ToolError("fio printed other than one group of jobs")
    if failed := figure("fio", jobs[0], "error"):
        raise ToolError(f"fio reports error {failed:.0f}")
    figures = jobs[0].get(direction)
    rate, moved = figure("fio", figures, "bw_bytes"), figure("fio", figures, "io_bytes")
    seconds = figure("fio", figures, "runtime") / 1e3
    if not rate or not moved:
        raise ToolError(f"fio moved nothing by {direction}")
    if abs(rate * seconds - moved) > 0.02 * moved + rate * 1e-3:  # runtime is in whole milliseconds
        raise ToolError(f"fio printed {moved:.6g} bytes in {seconds:.6g} s and a rate of {rate:.6g} B/s")
    return FioResult(
        rate,
        figure("fio", figures, "iops"),
        int(moved),
        figure("fio", figures, "clat_ns.mean") / 1e9,
        _percentile(figures, "50.000000"),
        _percentile(figures, "99.000000"),
    )


def _percentile(figures: object, name: str) -> float:
    latency = figures.get("clat_ns") if isinstance(figures, dict) else None
    percentiles = latency.get("percentile") if isinstance(latency, dict) else None
    if not isinstance(percentiles, dict) or name not in percentiles:
        raise ToolError(f"fio printed no percentile {name} of its completion latency")
    return figure("fio", [percentiles[name]], "0") / 1e9
