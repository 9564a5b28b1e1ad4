"""What a clock says together, held against when the host began the timed calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from clusterbench.engine.clock import CudaClock, WallClock, check_samples
from clusterbench.engine.loop import measure_beside_host
from clusterbench.errors import WrongResult

CALLS_S = (100.0, 101.6)


@pytest.mark.parametrize("total_s", [2.0, 1.99, 1.6])
def test_what_a_host_or_a_device_behind_it_takes_is_right(total_s: float) -> None:
    check_samples(total_s, 100.0, CALLS_S, 102.0)


def test_a_device_that_ends_long_behind_the_host_is_right() -> None:
    check_samples(8.0, 100.0, (100.0, 100.003), 108.1)


@pytest.mark.parametrize("total_s", [1.0, 1.5, 0.75, 2.2, 2000.0])
def test_half_of_the_seconds_milliseconds_or_those_of_the_process_alone_are_wrong(total_s: float) -> None:
    with pytest.raises(WrongResult, match=r"saw 1\.6 s from the start of the first timed call to the end of the last"):
        check_samples(total_s, 100.0, CALLS_S, 102.0)


def test_a_host_that_paused_before_the_first_call_is_right() -> None:
    check_samples(0.06, 100.0, (100.05, 100.06), 100.061)


@pytest.mark.parametrize("total_s", [0.001, 1.0])
def test_of_a_single_call_too_little_and_too_much_is_wrong(total_s: float) -> None:
    check_samples(0.5, 100.0, (100.0, 100.5), 100.5)
    with pytest.raises(WrongResult):
        check_samples(total_s, 100.0, (100.0, 100.5), 100.5)


@pytest.mark.parametrize("left_out", ["the first", "the slowest", "the last"])
def test_a_loop_that_leaves_one_call_of_three_out_is_wrong(left_out: str) -> None:
    """Two thirds of all are what is between the starts of the first and the last."""
    samples_s = [0.5, 0.75, 0.5]
    del samples_s[["the first", "the slowest", "the last"].index(left_out)]
    with pytest.raises(WrongResult):
        check_samples(sum(samples_s), 100.0, (100.0, 101.75), 101.75)


@dataclass(frozen=True)
class Event:
    """As CUDA has it: milliseconds since another."""

    at_ms: float

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


def test_events_of_cuda_are_in_milliseconds_and_samples_in_seconds() -> None:
    marks: list[Any] = [Event(100.0), Event(350.0), Event(850.0)]
    assert CudaClock().seconds(marks) == [0.25, 0.5]


class Device:
    """Runs what it is given in order, 10 ms each, and comes late to its second mark, as if another process had it."""

    lenience = 0.05

    def __init__(self, late_s: float, rate: float = 1.0) -> None:
        self.late_s, self.rate, self.free_s = [0.0, late_s], rate, 0.0

    def mark(self) -> float:
        self.free_s = max(time.perf_counter(), self.free_s) + (self.late_s.pop(0) if self.late_s else 0.0)
        return self.free_s

    def settle(self) -> None:
        time.sleep(max(0.0, self.free_s - time.perf_counter()))

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [self.rate * (stop - start) for start, stop in pairwise(marks)]

    def run(self) -> None:
        self.free_s = max(time.perf_counter(), self.free_s) + 0.01
        self.settle()


@pytest.mark.parametrize("late_s", [0.0, 0.02])
def test_a_device_that_another_process_has_at_first_is_right(late_s: float) -> None:
    """Five of seven processes on one H200 were called wrong by it."""
    device = Device(late_s)
    seconds, began_s, ended_s = measure_beside_host(device.run, device, 3, lambda iteration: None)
    assert sum(seconds) >= 0.03
    assert ended_s - began_s >= 0.03 + late_s


@pytest.mark.parametrize("late_s", [0.0, 0.02])
@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_a_clock_of_half_or_twice_the_rate_is_wrong_on_a_late_device_too(rate: float, late_s: float) -> None:
    device = Device(late_s, rate)
    with pytest.raises(WrongResult, match="No clock that runs as the host's does says so"):
        measure_beside_host(device.run, device, 10, lambda iteration: None)


class OneShort(Device):
    """Leaves the first of its samples out."""

    def seconds(self, marks: Sequence[float]) -> list[float]:
        samples_s = super().seconds(marks)
        return samples_s[1:] if len(samples_s) > 1 else samples_s


def test_a_sample_too_few_is_wrong_however_little_it_would_add() -> None:
    """One of 40 is less than what clocks may differ by."""
    device = OneShort(0.0)
    with pytest.raises(WrongResult, match="39 samples of 40 timed calls"):
        measure_beside_host(device.run, device, 40, lambda iteration: None)


class Off(WallClock):
    """The host's own clock, whose seconds are of 1,024 thousandths."""

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [second * 1000 / 1024 for second in super().seconds(marks)]


def test_seconds_of_1024_thousandths_are_wrong() -> None:
    with pytest.raises(WrongResult, match="No clock that runs as the host's does says so"):
        measure_beside_host(lambda: time.sleep(0.01), Off(), 10, lambda iteration: None)
    measure_beside_host(lambda: time.sleep(0.01), WallClock(), 10, lambda iteration: None)


class Even(WallClock):
    """The host's own clock, which has the same for each sample."""

    def seconds(self, marks: Sequence[float]) -> list[float]:
        samples_s = super().seconds(marks)
        return [sum(samples_s) / len(samples_s)] * len(samples_s)


class Shifted(WallClock):
    """One whose slowest sample lends the others what it has more than the next: the sum is right."""

    def seconds(self, marks: Sequence[float]) -> list[float]:
        samples_s = super().seconds(marks)
        slowest = samples_s.index(max(samples_s))
        more_s = samples_s[slowest] - sorted(samples_s)[-2] if len(samples_s) > 1 else 0.0
        samples_s[slowest] -= more_s
        return [second + more_s / len(samples_s) for second in samples_s]


@pytest.mark.parametrize("clock", [Even(), Shifted()])
def test_a_sample_that_has_of_the_time_of_another_is_wrong(clock: WallClock) -> None:
    """Median and spread are made of single samples, so that the right sum is not enough."""
    pauses_s = [0.004, 0.002, 0.002, 0.002]
    with pytest.raises(WrongResult, match=r"the first 1 of 4 samples add up to .* No clock that runs as the host's"):
        measure_beside_host(lambda: time.sleep(pauses_s.pop(0)), clock, 4, lambda iteration: None)


@pytest.mark.parametrize("calls", [1, 3])
def test_samples_of_the_host_s_own_clock_are_right_however_busy_it_is(calls: int) -> None:
    """Whatever keeps the thread is between two readings."""
    pauses_s = [0.003, 0.0, 0.001, 0.0] * 3
    seconds, *_ = measure_beside_host(
        lambda: time.sleep(pauses_s.pop()), WallClock(), 4, lambda iteration: time.sleep(0.002), calls
    )
    assert len(seconds) == 4
