"""The one loop that times things."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

from clusterbench.engine.clock import Clock, check_samples
from clusterbench.engine.settling import PROBE, Order, Stretch
from clusterbench.errors import WrongResult


def warm_up(run: Callable[[], object], clock: Clock, iterations: int, at: Callable[[int], None]) -> None:
    """Runs what is not timed: first calls build caches, connections and kernels. Then Python's garbage is collected.

    A collection takes each rank another while, so it has to come before the ranks meet for the first timed iteration.
    """
    for iteration in range(iterations):
        at(iteration)
        run()
    clock.settle()
    gc.collect()


def settle(
    run: Callable[[], object], clock: Clock, at: Callable[[int], None], decide: Callable[[Stretch], Order]
) -> tuple[Order, list[float]]:
    """Goes on warming up until ``decide`` says that it is enough.

    Parameters
    ----------
    decide
        What to do after each stretch, the same on every rank; asked between stretches only.

    Returns
    -------
    What is to be timed, and the seconds of each iteration of the burst.
    """
    order, burst_s, done = PROBE, [], 0
    while order.kind != "timed":
        at(done)
        seconds = measure(run, clock, order.samples, _nowhere, order.calls)
        if order.kind == "burst":
            burst_s = seconds
        done += order.iterations
        order = decide(Stretch(order.iterations, sum(seconds) * order.calls))
    gc.collect()
    return order, burst_s


def _nowhere(iteration: int) -> None:
    pass


def measure(
    run: Callable[[], object],
    clock: Clock,
    iterations: int,
    at: Callable[[int], None],
    calls: int = 1,
    first: Any = None,
) -> list[float]:
    """Seconds of each of ``iterations`` times ``calls`` calls of ``run``, back to back.

    Parameters
    ----------
    at
        Called with the number of the call about to start, so that a watcher sees where a rank hangs. Must cost next to
        nothing: it is inside the timed stretch.
    calls
        Of which each sample is the mean: what takes microseconds would leave too many samples.
    first
        The mark of ``clock`` that the first sample begins with, if it was taken a moment ago.

    Notes
    -----
    Consecutive iterations share a mark, so the samples add up to the whole stretch: nothing that happens in between is
    lost. Python's garbage collector rests during the loop; a collection in the middle would be charged to whichever
    iteration it fell into, and never to the same one on two ranks.
    """
    iterate = run if calls == 1 else partial(_repeat, run, calls)
    with collections_rest():
        marks = [clock.mark() if first is None else first]
        for iteration in range(iterations):
            at(iteration * calls)
            iterate()
            marks.append(clock.mark())
        clock.settle()
    seconds = clock.seconds(marks)
    return seconds if calls == 1 else [second / calls for second in seconds]


def measure_beside_host(
    run: Callable[[], object], clock: Clock, iterations: int, at: Callable[[int], None], calls: int = 1
) -> tuple[list[float], float, float]:
    """As :func:`measure` does; and when that began and ended, in seconds since 1970.

    Raises
    ------
    WrongResult
        If there are more or fewer samples than timed stretches, or ``clock`` says of the first of them together,
        however many, what by the host's clock cannot be: a sample with time of another is none of its own call.
    """
    starts_s, ends_s = list[float](), list[float]()

    def note(iteration: int) -> None:
        starts_s.append(time.perf_counter())
        at(iteration)

    def noted() -> None:
        run()
        ends_s.append(time.perf_counter())

    reached = clock.mark()
    clock.settle()
    began_s, before_s = time.time(), time.perf_counter()
    first = clock.mark()
    # reading the time behind calls of microseconds would be a part of them
    seconds = measure(noted if calls == 1 else run, clock, iterations, note, calls, first)
    ended_s, behind_s = time.time(), time.perf_counter()
    if len(seconds) != iterations:
        raise WrongResult(f"{len(seconds)} samples of {iterations} timed calls: each call belongs to one sample.")
    # A device that other processes use as well may come late to the first mark: by its own clock no later than this.
    start_s = max(starts_s[0], before_s + sum(clock.seconds([reached, first])))
    last_s = (ends_s or starts_s)[-1]
    check_samples(sum(seconds) * calls, before_s, (start_s, last_s), behind_s, clock.lenience)
    # A device may be far behind its host when the next call begins, where the host's own clock is not.
    over_s = [behind_s] * iterations if clock.lenience else starts_s[1:]
    totals_s = accumulate(second * calls for second in seconds[:-1])
    for number, (total_s, end_s, next_s) in enumerate(zip(totals_s, ends_s or starts_s, over_s, strict=False), 1):
        which = f"the first {number} of {iterations} samples"
        check_samples(total_s, before_s, (start_s, end_s), next_s, clock.lenience, which)
    return seconds, began_s, ended_s


def _repeat(run: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        run()


@contextmanager
def collections_rest() -> Iterator[None]:
    """Keeps Python's garbage collector from beginning inside."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
