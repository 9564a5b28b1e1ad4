"""SuperBench's ``gpu_copy``: copies between host and GPUs and between GPUs, a line each, by DMA engine and by SM.

Source: microsoft/superbenchmark, ``superbench/benchmarks/micro_benchmarks/gpu_copy_performance/gpu_copy.cu``. GB/s of
1e9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_END = r"(?P<{}>cpu|gpu\d+|gpu_all)"
_LINE = re.compile(
    rf"{_END.format('source')}_(?P<way>to|and)_{_END.format('destination')}(?:_(?P<verb>write|read))?_by_(?P<engine>sm|dma)"
    r"(?:_under_numa(?P<node>\d+))?[:,\s]+(?P<rate>\d+(?:\.\d+)?)"
)


@dataclass(frozen=True)
class GpuCopy:
    """One copy. ``source`` and ``destination`` are numbers of GPUs, or ``cpu``, or ``gpu_all``.

    ``kind`` is what has to be equal for two copies to be peers: verb, engine, and one way or both ways at once.
    ``node`` is the NUMA node of the host's memory. ``line`` is as printed.
    """

    source: int | str
    destination: int | str
    kind: str
    node: int | None
    bytes_per_s: float
    line: str


def is_gpu_copy(text: str) -> bool:
    """Whether a text has lines of copies."""
    return any(_LINE.fullmatch(line.strip()) for line in text.splitlines())


def parse(text: str) -> tuple[GpuCopy, ...]:
    """Every copy whose line is whole; of several runs the slowest of each."""
    copies: dict[tuple[object, ...], GpuCopy] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            copy = _copy(match)
            key = copy.source, copy.destination, copy.kind, copy.node
            copies[key] = min(copies.get(key, copy), copy, key=lambda each: each.bytes_per_s)
    return tuple(copies.values())


def _copy(match: re.Match[str]) -> GpuCopy:
    kind = "_".join(filter(None, (match["way"], match["verb"], "by", match["engine"])))
    return GpuCopy(
        _end(match["source"]),
        _end(match["destination"]),
        kind,
        None if match["node"] is None else int(match["node"]),
        float(match["rate"]) * 1e9,
        match[0],
    )


def _end(word: str) -> int | str:
    return int(word[3:]) if word[3:].isdigit() else word
