"""A step of one rank of a layout with data and nobody to talk to: what it costs the host, in calls and in seconds.

Torch resolves groups of a second fake group of a process to those of the first, so that each layout has a process.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from clusterbench.layout import ParallelLayout
from tests.ranks import FORKSERVER
from tests.training.jobs import Case, make_job

FEW, MANY = 2, 4
"""Layers of a rank, and micro-batches for each stage: what one more of either costs is in their difference."""


def calls_of(cases: Sequence[Case]) -> list[dict[str, float]]:
    """Of each case the calls in Python by ``layer`` and micro-batch, and by ``ends`` and micro-batch."""
    return _in_processes(_calls, cases)


def layer_seconds(cases: Sequence[Case]) -> list[float]:
    """Of each case the CPU seconds of a layer and micro-batch, the least of several steps."""
    return _in_processes(_layer_seconds, cases)


def _in_processes(function: Callable[..., Any], cases: Sequence[Case]) -> list[Any]:
    with ProcessPoolExecutor(1, mp_context=FORKSERVER, max_tasks_per_child=1) as processes:
        return [process.result() for process in [processes.submit(function, *case) for case in cases]]


# In a process of its own


@contextmanager
def _alone(layout: ParallelLayout) -> Iterator[Any]:
    import torch

    from clusterbench.engine.fake_group import fake_group
    from clusterbench.engine.rig import Rig

    torch.set_num_threads(1)
    with fake_group(0, layout.world_size, "cpu", has_data=True):
        rig = Rig(rank=0, world_size=layout.world_size, local_rank=0, host="here", device=torch.device("cpu"))
        rig.build_grid(layout, "megatron")
        yield rig


def _settled_step(rig: Any, case: Case, layers: int, micro_batches: int) -> Callable[[], object]:
    from clusterbench.parallel import from_options
    from clusterbench.training.step import TrainingStep

    name, options, changes = case
    layout = ParallelLayout.parse(name)
    sequences = layout.dp * layout.pp * micro_batches
    values = {"dtype": "float32", "micro_batch_size": 1, "global_batch_size": sequences, **changes}
    job = make_job(name, **values)
    job = replace(job, shape=replace(job.shape, num_layers=layers * layout.pp))
    step = TrainingStep(job, from_options(options), rig.grid, rig.device)
    for _ in range(3):  # DDP builds its buckets anew, and DTensor remembers its ways
        step()
    return step


def _calls(*case: Any) -> dict[str, float]:
    layout = ParallelLayout.parse(case[0])
    with _alone(layout) as rig:
        counted = {
            (layers, number): _count_calls(_settled_step(rig, case, layers, number))
            for layers in (FEW, MANY)
            for number in (FEW, MANY)
        }
    # calls = step + layers x by_layer + micro_batches x (ends + layers x layer)
    further = {number: counted[MANY, number] - counted[FEW, number] for number in (FEW, MANY)}
    more = (MANY - FEW) * layout.pp
    layer = (further[MANY] - further[FEW]) / (MANY - FEW) / more
    ends = (counted[FEW, MANY] - counted[FEW, FEW]) / more - FEW * layer
    return {"layer": layer, "ends": ends}


def _count_calls(step: Callable[[], object]) -> int:
    calls = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def _layer_seconds(*case: Any) -> float:
    layout = ParallelLayout.parse(case[0])
    seconds = {}
    with _alone(layout) as rig:
        for layers in (FEW, MANY):
            step = _settled_step(rig, case, layers, FEW)
            gc.collect()
            gc.disable()
            seconds[layers] = min(_cpu_seconds(step) for _ in range(15))
            gc.enable()
    return (seconds[MANY] - seconds[FEW]) / (MANY - FEW) / (FEW * layout.pp)


def _cpu_seconds(step: Callable[[], object]) -> float:
    start_s = time.process_time()
    step()
    return time.process_time() - start_s
