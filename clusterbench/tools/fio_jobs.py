"""fio: every job of what it printed, as JSON (``--output-format=json``) or for people, of versions 2 and 3.

Source: axboe/fio, ``stat.c``. Up to 2.x JSON has rates and bytes in KiB and latencies in us, from 3.0 on in bytes and
ns. For people a rate is printed twice, in powers of 2 and 10, and rounded to three or four digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterbench.errors import ToolError
from clusterbench.tools._json import document, figure

DIRECTIONS = ("read", "write", "trim")
_OPTIONS = ("rw", "bs", "iodepth", "numjobs", "ioengine", "direct", "size")
_JOB = re.compile(r"(?P<name>\S.*?): \(groupid=(?P<group>\d+), jobs=(?P<jobs>\d+)\): err=\s*(?P<error>\d+)(?P<rest>.*)")
_RATE = re.compile(
    r"(?P<direction>read|write|trim)\s*: IOPS=(?P<iops>[\d.]+)(?P<kilo>[kMG]?), BW=\S+ "
    r"\((?P<rate>[\d.]+)(?P<unit>[kMGT]?B)/s\)"
    r"\((?P<moved>[\d.]+)(?P<of>(?:[KMGTP]i|[kMGT])?B)/(?P<time>\d+)msec\)?.*"
)
_LATENCY = re.compile(r"clat \((?P<unit>nsec|usec|msec)\): min=.*?avg=\s*(?P<mean>[\d.]+), stdev=.*")
_PERCENTILES = re.compile(r"clat percentiles \((?P<unit>nsec|usec|msec)\):")
_PERCENTILE = re.compile(r"(\d+\.\d+)th=\[\s*(\d+)\]")
_SECONDS = {"nsec": 1e-9, "usec": 1e-6, "msec": 1e-3}
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()} | {
    f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGTP", 1)
}
_KEPT = {"50.000000": "p50", "99.000000": "p99", "50.00": "p50", "99.00": "p99"}


@dataclass(frozen=True)
class FioJob:
    """One direction of one job. ``latencies_s`` of completion by statistic: empty for the mean, ``p50``, ``p99``.

    ``error`` is fio's number; a job with one has no figure that counts.
    """

    name: str
    direction: str
    host: str
    options: Mapping[str, str]
    error: int
    bytes_per_s: float
    requests_per_s: float
    seconds: float
    latencies_s: Mapping[str, float] = field(default_factory=dict)
    where: str = ""


def is_fio(text: str) -> bool:
    return '"fio version"' in text or any(map(_RATE.fullmatch, map(str.strip, text.splitlines())))


def parse(text: str) -> tuple[FioJob, ...]:
    """Every direction in which something was moved, and every job that failed.

    Raises
    ------
    ToolError
        If it is cut, moved nothing, holds several runs, or a rate is not the bytes over the time.
    """
    jobs = tuple(_of_json(text) if '"fio version"' in text else _of_text(text))
    if not jobs:
        raise ToolError("fio moved nothing")
    return jobs


def _of_json(text: str) -> Iterator[FioJob]:
    report = document("fio", f"{text}\n")  # JSON is whole where its brace is closed
    old = re.match(r"fio-[12]\.", str(report.get("fio version", ""))) is not None
    shared = report.get("global options") if isinstance(report.get("global options"), dict) else {}
    clients = isinstance(report.get("client_stats"), list)
    key = "client_stats" if clients else "jobs"
    jobs = report.get(key)
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise ToolError(f"fio printed no '{key}'")
    for number, job in enumerate(jobs):
        if clients and job.get("jobname") == "All clients":
            continue
        said = {**(shared or {}), **(job.get("job options") or {})}
        options = {name: str(said[name]) for name in _OPTIONS if said.get(name) not in (None, "")}
        about = str(job.get("jobname", "")), str(job.get("hostname", "")), options, f"{key}[{number}]"
        if error := int(figure("fio", job, "error") if "error" in job else 0):
            yield FioJob(about[0], "", about[1], options, error, 0.0, 0.0, 0.0, where=about[3])
            continue
        for direction in DIRECTIONS:
            if isinstance(job.get(direction), dict) and job[direction].get("io_bytes"):
                yield _direction(job[direction], direction, old, *about)


def _direction(
    said: Mapping[str, Any], direction: str, old: bool, name: str, host: str, options: Mapping[str, str], where: str
) -> FioJob:
    scale, latency, second = (1024.0, "clat", 1e-6) if old else (1.0, "clat_ns", 1e-9)
    seconds = figure("fio", said, "runtime") / 1e3
    rate = figure("fio", said, "bw") * 1024 if old or "bw_bytes" not in said else figure("fio", said, "bw_bytes")
    moved = figure("fio", said, "io_bytes") * scale
    if not seconds or not rate:
        raise ToolError(f"fio moved {moved:.6g} bytes by {direction} in no time that it says")
    if abs(rate * seconds - moved) > 0.02 * moved + rate * 2e-3 + 1024 * seconds:  # runtime is in whole milliseconds
        raise ToolError(f"fio printed {moved:.6g} bytes in {seconds:.6g} s and a rate of {rate:.6g} B/s")
    latencies = {}
    completion = said.get(latency)
    if isinstance(completion, dict) and completion.get("mean"):
        latencies[""] = figure("fio", completion, "mean") * second
        percentiles = completion.get("percentile")
        for printed, statistic in _KEPT.items():
            if isinstance(percentiles, dict) and printed in percentiles:
                latencies[statistic] = figure("fio", [percentiles[printed]], "0") * second
    iops = figure("fio", said, "iops")
    return FioJob(name, direction, host, options, 0, rate, iops, seconds, latencies, where)


def _of_text(text: str) -> Iterator[FioJob]:
    """The lines of each job up to the next; the sums of all jobs at the end are left alone."""
    run, _, behind = text.partition("Run status group")
    if any(map(_JOB.fullmatch, map(str.strip, behind.splitlines()))):
        raise ToolError("the text holds several runs of fio, and not one")
    lines = run.splitlines()
    starts = [number for number, line in enumerate(lines) if _JOB.fullmatch(line.strip())]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        job = _JOB.fullmatch(lines[start].strip())
        assert job is not None  # it is where a job starts
        if int(job["error"]):
            yield FioJob(job["name"], "", "", {}, int(job["error"]), 0.0, 0.0, 0.0, where=str(start + 1))
            continue
        rates = [number for number in range(start, end) if _RATE.fullmatch(lines[number].strip())]
        for first, last in zip(rates, [*rates[1:], end], strict=True):
            yield _of_lines(job["name"], job["jobs"], lines[first:last], first + 1)


def _of_lines(name: str, jobs: str, lines: Sequence[str], number: int) -> FioJob:
    said = _RATE.fullmatch(lines[0].strip())
    assert said is not None  # it is where a direction starts
    latencies: dict[str, float] = {}
    unit = ""
    for line in map(str.strip, lines[1:]):
        if mean := _LATENCY.fullmatch(line):
            latencies[""] = float(mean["mean"]) * _SECONDS[mean["unit"]]
        elif percentiles := _PERCENTILES.fullmatch(line):
            unit = percentiles["unit"]
        elif line.startswith("|") and unit:
            kept = {_KEPT[share]: float(value) for share, value in _PERCENTILE.findall(line) if share in _KEPT}
            latencies |= {statistic: value * _SECONDS[unit] for statistic, value in kept.items()}
    rate = float(said["rate"]) * _DECIMAL[said["unit"].removesuffix("B")]
    seconds = int(said["time"]) / 1e3
    if not rate or not seconds:
        raise ToolError(f"fio printed a rate or a time of zero: {lines[0].strip()!r}")
    moved = float(said["moved"]) * _BYTES[said["of"]]
    if abs(rate * seconds - moved) > 0.02 * moved + rate * 2e-3:
        raise ToolError(f"fio printed a rate that is not its bytes over its time: {lines[0].strip()!r}")
    iops = float(said["iops"]) * _DECIMAL[said["kilo"]]
    options = {"numjobs": jobs} if jobs != "1" else {}
    return FioJob(name, said["direction"], "", options, 0, rate, iops, seconds, latencies, str(number))
