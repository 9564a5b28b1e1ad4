"""The one loop that times things."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from clusterbench.engine.clock import Clock


def warm_up(run: Callable[[], object], clock: Clock, iterations: int, at: Callable[[int], None]) -> None:
    """Runs what is not timed: first calls build caches, connections and kernels. Then Python's garbage is collected.

    A collection takes each rank another while, so it has to come before the ranks meet for the first timed iteration.
    """
    for iteration in range(iterations):
        at(iteration)
        run()
    clock.settle()
    gc.collect()


def measure(run: Callable[[], object], clock: Clock, iterations: int, at: Callable[[int], None]) -> list[float]:
    """Seconds of each of ``iterations`` calls of ``run``, back to back.

    Parameters
    ----------
    at
        Called with the number of the iteration about to start, so that a watcher sees where a rank hangs. Must cost
        next to nothing: it is inside the timed stretch.

    Notes
    -----
    Consecutive iterations share a mark, so the samples add up to the whole stretch: nothing that happens in between is
    lost. Python's garbage collector rests during the loop; a collection in the middle would be charged to whichever
    iteration it fell into, and never to the same one on two ranks.
    """
    with collections_rest():
        marks = [clock.mark()]
        for iteration in range(iterations):
            at(iteration)
            run()
            marks.append(clock.mark())
        clock.settle()
    return clock.seconds(marks)


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
