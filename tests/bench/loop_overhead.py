"""What the timing loop adds to an iteration of 1 ms, against a bare Python loop."""

from __future__ import annotations

import gc
from functools import partial
from time import perf_counter

from clusterbench.engine.clock import WallClock
from clusterbench.engine.loop import measure as timed
from clusterbench.launch.progress_page import ProgressPage
from tests.bench import Result, alternate, ratio

TARGET = 1.01
ROUNDS, ITERATIONS, BODY_S = 60, 20, 1e-3


def measure() -> list[Result]:
    page = ProgressPage.create(1)
    at = partial(page.write, 0, 6)  # what a worker does at each iteration, so that a silent rank can be found
    rivals = {"ours": lambda: _ours(at), "bare": _bare, "bare again": _bare}
    alternate(6, rivals)
    gc.disable()  # as inside our loop: what is compared is the loop, not the collector
    seconds = alternate(ROUNDS, rivals)
    gc.enable()
    page.close()
    return [ratio("loop_overhead", *seconds.values(), target=TARGET)]


def _ours(at) -> float:
    """Seconds per iteration as our loop reports them: its samples add up to the whole stretch."""
    return sum(timed(_body, WallClock(), ITERATIONS, at)) / ITERATIONS


def _bare() -> float:
    gc.collect()
    start_s = perf_counter()
    for _ in range(ITERATIONS):
        _body()
    return (perf_counter() - start_s) / ITERATIONS


def _body() -> None:
    """Computes until 1 ms has passed. A fixed amount of work would drift with the processor's clock."""
    end_s = perf_counter() + BODY_S
    while perf_counter() < end_s:
        pass
