"""DeepEP's tests: dispatch and combine of a mixture of experts.

Source: deepseek-ai/DeepEP, ``tests/test_intranode.py``, ``test_internode.py``, ``test_low_latency.py`` (under
``tests/legacy`` in newer versions) and ``README.md``. GB is 1e9. Bandwidths are *logical*: bytes of tokens over time,
those that stay on the rank included, so none is the rate of a link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterbench.errors import ToolError
from clusterbench.tools._text import end_of, positive, whole_lines

_NUMBER = r"(\S+?)"
_BEST = re.compile(
    rf"\[tuning\] Best (dispatch|combine)(?: \((FP8|BF16)\))?: SMs \d+, NVL chunk \d+(?:, RDMA chunk \d+)?[:,] "
    rf"(?:(?:{_NUMBER} \+ )?{_NUMBER} us, )?(?:{_NUMBER} GB/s \(RDMA\), )?{_NUMBER} GB/s \(NVL\)"
    rf"(?:, (?:t: )?{_NUMBER} us)?"
)
_WHOLE = re.compile(
    rf"\[rank (\d+)\] Dispatch \+ combine bandwidth: {_NUMBER} GB/s, "
    rf"avg_t={_NUMBER} us, min_t={_NUMBER} us, max_t={_NUMBER} us"
)
_HALVES = re.compile(
    rf"\[rank (\d+)\] Dispatch bandwidth: {_NUMBER} GB/s, avg_t={_NUMBER} us \| "
    rf"Combine bandwidth: {_NUMBER} GB/s, avg_t={_NUMBER} us"
)
_V2 = re.compile(
    r"[*\-#@+] EP:\s*(?P<rank>\d+)/\d+ \| (?P<phase>[a-z ]+): \d+ GB/s \(SO\), "
    r"\d+ GB/s \(SU\), (?P<us>[\d.]+) us, (?P<bytes>\d+) bytes \| .*"
)
_TOOL = "DeepEP's test"


@dataclass(frozen=True)
class RankTime:
    """A rank's time of one phase (``dispatch``, ``combine``), and the bytes that it moved in its scale-up domain."""

    rank: int
    phase: str
    time_s: float
    size_bytes: int
    line: str


@dataclass(frozen=True)
class BestOfTuning:
    """The best of the chunk sizes that were tried. ``part`` is ``dispatch_fp8``, ``dispatch_bf16`` or ``combine``.

    ``time_s`` is that of the transfer, without what precedes it (the notification); None in versions that do not print
    it. ``rdma_bytes_per_s`` is None within a node.
    """

    part: str
    time_s: float | None
    rdma_bytes_per_s: float | None
    nvl_bytes_per_s: float


@dataclass(frozen=True)
class LowLatency:
    """One rank's figures; ``whole_min_s`` beside ``whole_s`` shows stalls that an average hides."""

    rank: int
    whole_s: float
    whole_min_s: float
    whole_max_s: float
    whole_bytes_per_s: float
    dispatch_s: float
    dispatch_bytes_per_s: float
    combine_s: float
    combine_bytes_per_s: float


def is_deepep(text: str) -> bool:
    """Whether a text has figures of one of its tests, of version 1 or 2."""
    lines = [line.strip() for line in text.splitlines()]
    return any(map(_V2.fullmatch, lines)) or any(map(_BEST.fullmatch, lines)) or any(map(_WHOLE.fullmatch, lines))


def rank_times(text: str) -> tuple[RankTime, ...]:
    """Every figure of version 2 (``tests/elastic/test_ep.py``, ``tests/ep/test_ep.py``) whose line is whole.

    Version 2 prints a line for each rank and phase, several where it tests several settings.
    """
    matches = (_V2.fullmatch(line.strip()) for line in whole_lines(text))
    return tuple(
        RankTime(int(match["rank"]), match["phase"], float(match["us"]) / 1e6, int(match["bytes"]), match[0])
        for match in matches
        if match and int(match["bytes"]) and float(match["us"])
    )


def parse_best(text: str) -> tuple[BestOfTuning, ...]:
    """The three best of a test of normal kernels, within a node or between nodes.

    Raises
    ------
    ToolError
        If one of the three is missing, is printed twice or cannot be read.
    """
    best: dict[str, BestOfTuning] = {}
    for line in whole_lines(text):
        if "[tuning] Best" not in line:
            continue
        match = _BEST.fullmatch(line.strip())
        if match is None:
            raise ToolError(f"{_TOOL} printed a line that cannot be read: {line.strip()!r}")
        kind, dtype, notify, early_us, rdma, nvl, late_us = match.groups()
        if notify is not None:
            positive(_TOOL, notify, line)
        time_us = early_us or late_us
        part = f"{kind}_{dtype.lower()}" if dtype else kind
        if part in best:
            raise ToolError(f"{_TOOL} printed its best {part} twice: {line.strip()!r}")
        best[part] = BestOfTuning(
            part,
            None if time_us is None else positive(_TOOL, time_us, line) / 1e6,
            None if rdma is None else positive(_TOOL, rdma, line) * 1e9,
            positive(_TOOL, nvl, line) * 1e9,
        )
    if best.keys() != {"dispatch_fp8", "dispatch_bf16", "combine"}:
        raise ToolError(f"{_TOOL} printed no best of dispatch in FP8, dispatch in BF16 and combine: {end_of(text)}")
    return tuple(best.values())


def parse_low_latency(text: str) -> tuple[LowLatency, ...]:
    """Every rank's figures of a test of low-latency kernels, by rank.

    Raises
    ------
    ToolError
        If there is none, or a rank printed one of its two lines and not the other, or one that cannot be read.
    """
    wholes: dict[int, list[float]] = {}
    halves: dict[int, list[float]] = {}
    for line in whole_lines(text):
        for opening, pattern, into in (
            ("Dispatch + combine bandwidth", _WHOLE, wholes),
            ("Dispatch bandwidth", _HALVES, halves),
        ):
            if opening not in line:
                continue
            match = pattern.fullmatch(line.strip())
            if match is None or int(match[1]) in into:
                raise ToolError(f"{_TOOL} printed a line that cannot be read: {line.strip()!r}")
            into[int(match[1])] = [positive(_TOOL, cell, line) for cell in match.groups()[1:]]
    if not wholes or wholes.keys() != halves.keys():
        raise ToolError(f"{_TOOL} printed no whole figures of every rank: {end_of(text)}")
    return tuple(_low_latency(rank, wholes[rank], halves[rank]) for rank in sorted(wholes))


def _low_latency(rank: int, whole: list[float], half: list[float]) -> LowLatency:
    rate, mean_us, min_us, max_us = whole
    dispatch_rate, dispatch_us, combine_rate, combine_us = half
    if not min_us <= mean_us <= max_us:
        raise ToolError(f"{_TOOL} printed on rank {rank} a mean of {mean_us} us outside of {min_us} to {max_us} us")
    return LowLatency(
        rank,
        mean_us / 1e6,
        min_us / 1e6,
        max_us / 1e6,
        rate * 1e9,
        dispatch_us / 1e6,
        dispatch_rate * 1e9,
        combine_us / 1e6,
        combine_rate * 1e9,
    )
