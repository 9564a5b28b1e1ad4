"""Clocks the timing loop reads. A mark costs next to nothing; marks become seconds once everything has settled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Where time comes from. Tests plant their own."""

    def mark(self) -> Any:
        """A point in time; cheap, and never waits for the device."""

    def settle(self) -> None:
        """Waits until everything launched so far has run."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Seconds between consecutive marks, after :meth:`settle`."""


class WallClock:
    """The host's monotonic clock; right wherever the work runs on the calling thread."""

    def mark(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        pass

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [stop - start for start, stop in pairwise(marks)]


class CudaClock:
    """Events on the current stream, so the host may run ahead of the device while it is timed."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        return [start.elapsed_time(stop) / 1e3 for start, stop in pairwise(marks)]


def clock_for(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else WallClock()
