"""What the tests of training and parallel run on Gloo ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, active_in, expected_memory, expected_traffic, from_options, part_of
from clusterbench.shape import named_shape
from clusterbench.training.job import TrainingJob

TINY_VARIANTS: dict[str, dict[str, Any]] = {
    "llama-tiny-tied": {"tied_embeddings": True},
    "llama-tiny-mqa": {"num_kv_heads": 1},
}


def make_job(layout: str = "tp1", **changes: Any) -> TrainingJob:
    """Two micro-batches of two sequences of 16 tokens per dp rank, on llama-tiny in float64."""
    parsed = ParallelLayout.parse(layout)
    values: dict[str, Any] = {
        "seq_len": 16,
        "global_batch_size": 4 * parsed.dp,
        "micro_batch_size": 2,
        "dtype": "float64",
        **changes,
    }
    name = values.pop("shape", "llama-tiny")
    shape = replace(named_shape("llama-tiny"), **TINY_VARIANTS[name]) if name in TINY_VARIANTS else named_shape(name)
    return TrainingJob(shape, parsed, **values)


def make_rig(layout: ParallelLayout) -> Any:
    """The rig of this rank, with the layout's mesh."""
    import torch
    import torch.distributed as dist

    from clusterbench.engine.rig import Rig

    rank = dist.get_rank()
    rig = Rig(rank=rank, world_size=dist.get_world_size(), local_rank=rank, host="here", device=torch.device("cpu"))
    rig.build_grid(layout, "megatron")
    return rig


def parity_of(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> dict[str, float] | str:
    """The evidence of a layout, or the sentence with which it was found wrong."""
    from clusterbench.errors import WrongResult
    from clusterbench.training.parity import check_parity

    job = make_job(layout, **changes)
    rig = make_rig(job.layout)
    try:
        return check_parity(job, from_options(options), rig.grid, rig.device)
    except WrongResult as error:
        return str(error)


Totals = dict[tuple[str, str], tuple[int, int]]


def traffic_of(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> tuple[Totals, Totals]:
    """Counted and expected collectives of one step: (axis, op) -> calls and bytes."""
    from clusterbench.engine.traffic import TrafficCounter
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout), from_options(options)
    step = TrainingStep(job, every, rig.grid, rig.device)
    step()
    step()  # DDP builds its buckets anew in the second
    with TrafficCounter(rig.grid.names()) as counter:
        step()
    counted = {key: (total.count, total.size_bytes) for key, total in counter.totals().items()}
    return counted, expected(job, every, rig.grid.rank("pp"))


def expected(job: TrainingJob, every: tuple[Parallelism, ...], pp_rank: int) -> Totals:
    active = active_in(job.layout, every)
    job = part_of(job, active, pp_rank)
    return {(sent.axis, sent.op): (sent.count, sent.size_bytes) for sent in expected_traffic(active, job)}


def memory_of(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> tuple[dict[str, int], dict[str, float]]:
    """Tracked and expected peaks of one step, by category: the least of three, as Gloo may let go of a buffer late."""
    from clusterbench.engine.memory import MemoryTracker
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout), from_options(options)
    step = TrainingStep(job, every, rig.grid, rig.device)
    step()
    step()
    peaks = []
    for _ in range(3):
        with MemoryTracker(step.assembly.decoders, step.optimizers) as tracker:
            step()
        peaks.append(tracker.peak().peak_by_category)
    tracked = {category: min(peak[category] for peak in peaks) for category in peaks[0]}
    return tracked, expected_memory(active_in(job.layout, every), step.job)
