"""The dry step of one rank, in a process of its own: torch knows one process group of this kind at a time."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from clusterbench.dry.cuda_operators import use_cuda_operators
from clusterbench.dry.fake_group import fake_group
from clusterbench.dry.launches import Launches
from clusterbench.engine.compat import fake_tensors
from clusterbench.engine.flops import FlopCounter
from clusterbench.engine.grid import Grid
from clusterbench.engine.memory import MemoryTracker
from clusterbench.engine.traffic import Collective, TrafficCounter
from clusterbench.job import TrainingJob
from clusterbench.job.dry import DryRank, Held, Sent
from clusterbench.parallel import Parallelism, active_in
from clusterbench.parallel.data import DataParallel
from clusterbench.trainers import Trainer
from clusterbench.training.built_step import BuiltStep


def dry_rank(trainer: Trainer, job: TrainingJob, every: Sequence[Parallelism], rank_order: str, rank: int) -> DryRank:
    """One step of ``rank`` as it will be once the step has settled. Leaves this process unfit for another."""
    started_s = time.process_time()
    device = torch.device("cpu")
    with fake_group(rank, job.layout.world_size):
        grid = Grid(job.layout, rank_order, device.type)
        with fake_tensors():
            step = trainer.build(job, every, grid, device)
            if job.device == "cuda":
                use_cuda_operators(step.modules)
            for _ in range(_steps_to_settle(job, every)):
                step()
            return _measured(step, grid, device, rank, started_s)


def _measured(step: BuiltStep, grid: Grid, device: torch.device, rank: int, started_s: float) -> DryRank:
    tracker = MemoryTracker(step.modules, step.optimizers, device)
    traffic, flops, launches = TrafficCounter(grid.names()), FlopCounter(), Launches(grid.names())
    with tracker, traffic, flops, launches:
        step()
    peak, (peak_at, held) = tracker.peak(), tracker.at_peak()
    of_all = sorted((Held(*what, size_bytes) for what, size_bytes in held.items()), key=lambda each: -each.size_bytes)
    return DryRank(
        rank=rank,
        memory={"total": peak.total_bytes, **peak.peak_by_category},
        peak_at=peak_at,
        held=of_all,
        sent=list(in_order(traffic.collectives)),
        chain=launches.chain,
        executed=flops.executed(),
        operators=launches.operators // step.job.gradient_accumulation_steps,
        spent_s=time.process_time() - started_s,
        process_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def _steps_to_settle(job: TrainingJob, every: Sequence[Parallelism]) -> int:
    """After the first the optimizer has its state; DDP builds its buckets anew in the second."""
    return 2 if any(isinstance(each, DataParallel) for each in active_in(job.layout, every)) else 1


def in_order(collectives: Sequence[Collective]) -> Iterator[Sent]:
    """One after the other; those that follow each other and are alike as one."""
    for each, alike in groupby(collectives):
        yield Sent(each.axis, each.op, each.size_bytes, each.dtype, each.group_size, sum(1 for _ in alike))
