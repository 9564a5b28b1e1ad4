"""The dry step of one rank, in a process of its own: torch knows one process group of this kind at a time."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby

import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.pipelining

import clusterbench.training.step  # noqa: F401  # with torch's own above: ranks are forked when all is imported
from clusterbench.dry.cuda_operators import cuda_operators
from clusterbench.dry.watch import CARD, CARD_BESIDE_HOST, HostTracker, StepWatch
from clusterbench.engine.compat import begin_sharding, fake_tensors, is_sharded, sharding_on
from clusterbench.engine.fake_group import fake_group
from clusterbench.engine.grid import Grid
from clusterbench.engine.traffic import Collective
from clusterbench.job import TrainingJob
from clusterbench.job.dry import DryRank, Held, Sent
from clusterbench.model.decoder import Decoder
from clusterbench.parallel import Parallelism, active_in, stores_scores
from clusterbench.parallel.attention import AttentionBackend
from clusterbench.parallel.data import DataParallel
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.trainers import Trainer
from clusterbench.training.built_step import BuiltStep


def dry_rank(
    trainer: Trainer,
    job: TrainingJob,
    every: Sequence[Parallelism],
    rank_order: str,
    rank: int,
    device: str = "cpu",
) -> DryRank:
    """One step of ``rank`` as it will be once the step has settled. Leaves this process unfit for another.

    Parameters
    ----------
    device
        Where the tensors say that they are. On a CPU they get by without a driver, and a job for GPUs has CUDA's
        operators put in.
    """
    started_s = time.process_time()
    without_data, left_out = zip(*(parallelism.without_data() for parallelism in every), strict=True)
    run = _attending(without_data, job)
    has_host, place = any(each.keeps_on_host(job) for each in active_in(job.layout, run)), torch.device(device)
    if has_host and place == CARD:
        place = CARD_BESIDE_HOST
    as_on_cuda = cuda_operators() if job.device != place.type else nullcontext()
    with fake_group(rank, job.layout.world_size, job.device), as_on_cuda:
        grid = Grid(job.layout, rank_order, place.type)
        with fake_tensors(), sharding_on(place) if has_host else nullcontext():
            step = trainer.build(job, run, grid, place)
            _settle(step, job, run)
            seen = _measured(step, grid, place, rank, has_host)
            host = _in_host_memory(step) if has_host else {}
    took_s, peak_bytes = time.process_time() - started_s, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = [words for words in (*left_out, _not_filled(job)) if words]
    return replace(seen, left_out=words, host=host, spent_s=took_s, process_bytes=peak_bytes)


def _attending(every: Sequence[Parallelism], job: TrainingJob) -> Sequence[Parallelism]:
    """With plain products where a GPU has no other kernel for this job's attention: tensors here may have one."""
    if not stores_scores(active_in(job.layout, every), job):
        return every
    return [replace(each, attention_backend="math") if isinstance(each, AttentionBackend) else each for each in every]


def _not_filled(job: TrainingJob) -> str:
    return f"{job.fills_heads}; here they are as they came" if job.fills_heads else ""


def _in_host_memory(step: BuiltStep) -> Mapping[str, int]:
    tracker = HostTracker(step)
    with tracker:
        step()
    return tracker.by_category()


def _measured(step: BuiltStep, grid: Grid, device: torch.device, rank: int, has_host: bool) -> DryRank:
    watch = StepWatch(step, device, grid.names(), has_host)
    with watch:
        step()
    peak, (peak_at, held) = watch.peak(), watch.at_peak()
    of_all = sorted((Held(*what, size_bytes) for what, size_bytes in held.items()), key=lambda each: -each.size_bytes)
    return DryRank(
        rank=rank,
        memory={"total": peak.total_bytes, **peak.peak_by_category},
        peak_at=peak_at,
        held=of_all,
        sent=list(in_order(watch.traffic.collectives)),
        chain=watch.launches.chain,
        executed=watch.flops.executed(),
        operators=watch.launches.operators // step.job.gradient_accumulation_steps,
        work=watch.work.rows(),
        spent_s=0.0,
        process_bytes=0,
    )


def _settle(step: BuiltStep, job: TrainingJob, every: Sequence[Parallelism]) -> None:
    """Brings a step to where it is from then on: its optimizer has state, and DDP its buckets.

    DDP builds them anew in the second step, and the schedules of pipelines hold what an earlier step has left. Of the
    others the first step is like those that follow once there are states and the tables of positions.
    """
    kinds = {type(each) for each in active_in(job.layout, every)}
    if kinds & {DataParallel, Pipeline} or not all(isinstance(module, Decoder) for module in step.modules):
        for _ in range(2 if DataParallel in kinds else 1):
            step()
        return
    for module in step.modules:
        assert isinstance(module, Decoder)
        module.tables()
        if is_sharded(module):
            begin_sharding(module)  # tensors without data have no address by which it knows shares that it has padded
    for each in step.optimizers:
        for parameter in [parameter for group in each.param_groups for parameter in group["params"]]:
            parameter.grad = torch.empty_like(parameter)  # each alone: of all at once DTensor asks n x n questions
            each.step()
            parameter.grad = None


def in_order(collectives: Sequence[Collective]) -> Iterator[Sent]:
    """One after the other; those that follow each other and are alike as one."""
    for each, alike in groupby(collectives):
        yield Sent(each.axis, each.op, each.size_bytes, each.dtype, each.group_size, sum(1 for _ in alike))
