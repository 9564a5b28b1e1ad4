"""How long this rank works on its own part of a step, without waiting for others.

On a CPU these are the CPU seconds of the thread that runs the step. It sleeps whenever Gloo keeps it, in Python or in
the C++ of DDP, and so waiting costs none. Counted is what the thread executes: operators, autograd, Python. Not counted
are threads of the communication library, threads beyond the first of an operator, sleep, disks, and waiting for a core:
a rank that has to share its core takes no more of these seconds. A thread that spins while it waits would count as
working; Gloo's does not.

On CUDA they are the seconds in which the device ran a kernel or a copy that moves nothing between ranks, from the
profiler. NCCL's kernels spin until their peers come, and are communication from begin to end. Not counted are gaps
between kernels, so a host that is late in launching them does not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from clusterbench.engine.loop import collections_rest
from clusterbench.engine.rig import Rig
from clusterbench.engine.trace import work_on_device

LONGEST_S = 20.0
"""After so many seconds no further step begins: a case has a time limit, and its step may take a minute."""


class OwnWork:
    """A step that keeps, in ``spent_s``, how long this rank's own work in each of its calls took.

    Only on a CPU, where reading the thread's clock costs less than a microsecond, so that it may share a step with the
    clock of the case. On CUDA it takes a profiler.
    """

    def __init__(self, step: Callable[[], object], device: torch.device) -> None:
        self.step, self._reads_clock = step, device.type == "cpu"
        self.spent_s: list[float] = []

    def __call__(self) -> None:
        start_s = time.thread_time()
        self.step()
        if self._reads_clock:
            self.spent_s.append(time.thread_time() - start_s)


def own_seconds(step: Callable[[], object], rig: Rig, known: Sequence[float] = ()) -> list[float]:
    """Own work of this rank in each of at least ``rig.own_steps`` steps, in seconds.

    They are fewer where :data:`LONGEST_S` are over. A collective: between two steps all ranks agree on whether there is
    another.

    Parameters
    ----------
    known
        Seconds of steps that have run already, as many on each rank: only what is missing runs now.
    """
    spent = [round(second, 9) for second in known]
    start_s = time.monotonic()
    with collections_rest():
        while len(spent) < rig.own_steps and (not spent or _longest(time.monotonic() - start_s, rig) < LONGEST_S):
            spent.append(round(own_work_s(step, rig.device), 9))
    return spent


def own_work_s(step: Callable[[], object], device: torch.device) -> float:
    """Seconds of this rank's own work in one more step, without what it waited for others."""
    if device.type == "cuda":
        return work_on_device(step, device)
    start_s = time.thread_time()
    step()
    return time.thread_time() - start_s


def _longest(elapsed_s: float, rig: Rig) -> float:
    longest_s = torch.tensor(elapsed_s, device=rig.device)
    rig.comm.all_reduce(longest_s, "max")
    return float(longest_s)
