"""How far two processes are apart that multiply at the same time, each on its own core, over stretches of a length.

``python -m tests.bench.equal_ranks 60`` watches them for a minute. Of independent noise four times the time would leave
half of it; what is left instead is :data:`clusterbench.diagnoses.straggler.WANDERS`.
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.synchronize
import sys
import time
from collections.abc import Sequence
from statistics import mean, pstdev

import torch

from clusterbench.diagnoses.straggler import WANDERS, WANDERS_WITHIN_S
from tests.bench import Result

SECONDS = 60.0
STRETCHES_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
_SIZE = 512

Product = tuple[float, float]
"""When it began, from the first on, and how long it took, in seconds."""


def measure(seconds: float = SECONDS) -> list[Result]:
    both = _watched(seconds)
    apart = {stretch_s: pstdev(_apart(both, stretch_s, seconds)) for stretch_s in STRETCHES_S}
    words = ", ".join(f"{stretch_s:g} s {100 * sd:.1f} %" for stretch_s, sd in apart.items())
    note = f"standard deviation over stretches of {words}; {len(both[0]):,} products"
    return [Result("equal_ranks", 100 * apart[WANDERS_WITHIN_S], "%", 100 * WANDERS, "shown", note)]


def _apart(both: Sequence[Sequence[Product]], stretch_s: float, seconds: float) -> list[float]:
    """Of each stretch the logarithm of how many times as long the first process took."""
    logs = []
    for number in range(int(seconds / stretch_s)):
        start_s, end_s = number * stretch_s, (number + 1) * stretch_s
        took_s = [[took for began, took in of_one if start_s <= began < end_s] for of_one in both]
        if all(took_s):
            logs.append(math.log(mean(took_s[0]) / mean(took_s[1])))
    return logs


def _watched(seconds: float) -> list[list[Product]]:
    context = multiprocessing.get_context("spawn")
    queue, together = context.Queue(), context.Barrier(2)
    processes = [context.Process(target=_multiply, args=(seconds, together, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    both = [queue.get(timeout=seconds + 60) for _ in processes]
    for process in processes:
        process.join()
    return both


def _multiply(
    seconds: float, together: multiprocessing.synchronize.Barrier, queue: multiprocessing.Queue[list[Product]]
) -> None:
    torch.set_num_threads(1)
    a, b = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    for _ in range(20):
        a @ b
    together.wait()
    products, start_s = [], time.perf_counter()
    while (began_s := time.perf_counter() - start_s) < seconds:
        a @ b
        products.append((began_s, time.perf_counter() - start_s - began_s))
    queue.put(products)


if __name__ == "__main__":
    for result in measure(*map(float, sys.argv[1:])):
        print(f"{result.name}: {result.value:.1f} {result.unit} {result.note}")
