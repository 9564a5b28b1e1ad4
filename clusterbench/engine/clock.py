"""Clocks the timing loop reads. A mark costs next to nothing; marks become seconds once everything has settled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

from clusterbench.errors import WrongResult


class Clock(Protocol):
    """Where time comes from. Tests plant their own.

    Attributes
    ----------
    lenience
        By which share its seconds may be off the host's.
    """

    lenience: float

    def mark(self) -> Any:
        """A point in time; cheap, and never waits for the device."""

    def settle(self) -> None:
        """Waits until everything launched so far has run."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Seconds between consecutive marks, after :meth:`settle`."""


class WallClock:
    """The host's monotonic clock; right wherever the work runs on the calling thread."""

    lenience = 0.0

    def mark(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        pass

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [stop - start for start, stop in pairwise(marks)]


class CudaClock:
    """Events on the current stream, so the host may run ahead of the device while it is timed."""

    lenience = 0.05

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def settle(self) -> None:
        torch.cuda.synchronize()

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        return [start.elapsed_time(stop) / 1e3 for start, stop in pairwise(marks)]


_SLACK_S = 1e-3
"""Of a device's clock. The host's own is read before and behind each mark, so that nothing has to be forgiven."""


def check_samples(
    total_s: float,
    began_s: float,
    calls_s: tuple[float, float],
    ended_s: float,
    lenience: float = CudaClock.lenience,
    which: str = "the samples",
) -> None:
    """Holds samples of a clock together against when the timed calls ran on the host.

    A device ends behind the host, so samples are no shorter than from the start of the first call to the end of the
    last, and end before all is over.

    Parameters
    ----------
    total_s
        All these samples together.
    began_s, calls_s, ended_s
        By the host's clock: a moment before the first call, when that began (of a device that was late: when its first
        sample did) and the last one returned, and a moment behind it. A host that does something else in between makes
        the samples no longer than from the first moment to the last.
    lenience
        That of the clock.
    which
        They are, in words.

    Raises
    ------
    WrongResult
        If they are shorter or longer than can be.

    >>> check_samples(3.0, 9.999, (10.0, 13.0), 13.001)
    """
    least_s, most_s = calls_s[1] - calls_s[0], ended_s - began_s
    slack_s = _SLACK_S if lenience else 1e-6
    if least_s * (1 - lenience) - slack_s <= total_s <= most_s * (1 + lenience) + slack_s:
        return
    raise WrongResult(
        f"{which} add up to {total_s:.4g} s, while this host saw {least_s:.4g} s from the start of the first timed "
        f"call to the end of the last, and {most_s:.4g} s in all. No clock that runs as the host's does says so."
    )


def clock_for(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else WallClock()
