"""Gloo all-reduces of our probe on two ranks, against a bare loop over torch's call in the same two processes.

Asked twice. The time on the wall is what counts, but two ranks that wait for each other on a busy machine differ from
themselves by more than the margin. What our loop adds can only be instructions of the calling thread: its seconds of
CPU, which no other process takes, are put in the place of the bare loop's in the bare loop's time on the wall.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter, thread_time

import torch
import torch.distributed as dist

from tests.bench import Result, alternate, ratio
from tests.ranks import run_ranks

TARGET, ROUNDS = 1.02, 300
CALLS = {2**16: 10, 2**20: 10, 2**24: 2}
"""Size in bytes -> calls in one burst: few, so that slow moments of the machine fall on all alike."""


def measure() -> list[Result]:
    found = []
    for size_bytes, calls in CALLS.items():
        ranks = run_ranks(2, _race, size_bytes, calls, timeout_s=600)
        # A burst takes as long as its slower rank.
        walls, cpus = ([_slower(both) for both in zip(*clock, strict=True)] for clock in zip(*ranks, strict=True))
        name = f"{size_bytes // 2**10}_kib"
        found.append(ratio(f"all_reduce_overhead_{name}", *walls, TARGET))
        waited_s = median(walls[1]) - median(cpus[1])
        found.append(
            ratio(f"all_reduce_added_cpu_{name}", *([waited_s + cpu_s for cpu_s in cpu] for cpu in cpus), TARGET)
        )
    return found


def _slower(bursts_of_ranks: Sequence[Sequence[float]]) -> list[float]:
    return [max(pair) for pair in zip(*bursts_of_ranks, strict=True)]


def _race(size_bytes: int, calls: int) -> list[list[list[float]]]:
    """This rank's seconds of a call in each burst of each contender: on the wall, and of the calling thread's CPU."""
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

    def together(contender: Callable[[], list[float]]) -> tuple[float, float]:
        dist.barrier()
        start_s = thread_time()
        (wall_s,) = contender()
        return wall_s, (thread_time() - start_s) / calls

    rivals = {"ours": partial(together, ours), "bare": partial(together, bare), "again": partial(together, bare)}
    alternate(6, rivals)
    bursts = alternate(ROUNDS, rivals).values()
    return [[[burst[clock] for burst in of_one] for of_one in bursts] for clock in (0, 1)]
