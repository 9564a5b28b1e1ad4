"""The one loop that times things."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from clusterbench.engine.clock import Clock
from clusterbench.engine.settling import PROBE, Order, Stretch


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
    run: Callable[[], object], clock: Clock, iterations: int, at: Callable[[int], None], calls: int = 1
) -> list[float]:
    """Seconds of each of ``iterations`` times ``calls`` calls of ``run``, back to back.

    Parameters
    ----------
    at
        Called with the number of the call about to start, so that a watcher sees where a rank hangs. Must cost next to
        nothing: it is inside the timed stretch.
    calls
        Of which each sample is the mean: what takes microseconds would leave too many samples.

    Notes
    -----
    Consecutive iterations share a mark, so the samples add up to the whole stretch: nothing that happens in between is
    lost. Python's garbage collector rests during the loop; a collection in the middle would be charged to whichever
    iteration it fell into, and never to the same one on two ranks.
    """
    iterate = run if calls == 1 else partial(_repeat, run, calls)
    with collections_rest():
        marks = [clock.mark()]
        for iteration in range(iterations):
            at(iteration * calls)
            iterate()
            marks.append(clock.mark())
        clock.settle()
    seconds = clock.seconds(marks)
    return seconds if calls == 1 else [second / calls for second in seconds]


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
