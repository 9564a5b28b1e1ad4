"""Gloo all-reduces of our probe on two ranks, against a bare loop over torch's call in the same two processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import partial
from itertools import chain
from time import perf_counter

import torch
import torch.distributed as dist

from tests.bench import Result, alternate, ratio
from tests.ranks import run_ranks

TARGET, ROUNDS = 1.02, 1000
CALLS = {2**16: 1, 2**20: 1, 2**24: 1}
"""Size in bytes -> calls in one burst: one, so that slow moments of the machine fall on all alike."""


def measure() -> list[Result]:
    found = []
    for size_bytes, calls in CALLS.items():
        ranks = run_ranks(2, _race, size_bytes, calls, timeout_s=600)
        # A burst takes as long as its slower rank.
        ours, bare, again = ([max(pair) for pair in zip(*both, strict=True)] for both in zip(*ranks, strict=True))
        found.append(ratio(f"all_reduce_overhead_{size_bytes // 2**10}_kib", ours, bare, again, TARGET))
    return found


def _race(size_bytes: int, calls: int) -> list[list[float]]:
    """This rank's seconds of a call in each burst of each contender."""
    from clusterbench.benchmarks.all_reduce import AllReduce
    from clusterbench.cluster import Cluster
    from clusterbench.engine.clock import WallClock
    from clusterbench.engine.loop import measure as timed
    from clusterbench.engine.rig import Rig
    from clusterbench.launch.progress_page import ProgressPage
    from clusterbench.types import Place

    rank, world_size = dist.get_rank(), dist.get_world_size()
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):  # Gloo's threads with it
        os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})
    rig = Rig(rank=rank, world_size=world_size, local_rank=rank, host="here", device=torch.device("cpu"))
    place = Place(Cluster(1, world_size, "cpu"), 1)
    (point,) = AllReduce(min_size=size_bytes, max_size=size_bytes).points(place)
    step, at = AllReduce.prepare(rig, point), partial(ProgressPage.create(1).write, 0, 6)  # as a worker is watched
    step.check()
    array = torch.zeros(size_bytes // 4)
    gc.collect()
    gc.freeze()  # as a worker's zygote does: a collection then takes no time in which the other rank would wait

    def ours() -> list[float]:
        return [sum(timed(step.run, WallClock(), calls, at)) / calls]

    def bare() -> list[float]:
        start_s = perf_counter()
        for _ in range(calls):
            dist.all_reduce(array)
        return [(perf_counter() - start_s) / calls]

    def together(contender: Callable[[], list[float]]) -> list[float]:
        dist.barrier()
        return contender()

    rivals = {"ours": partial(together, ours), "bare": partial(together, bare), "again": partial(together, bare)}
    alternate(6, rivals)
    return [list(chain.from_iterable(bursts)) for bursts in alternate(ROUNDS, rivals).values()]
