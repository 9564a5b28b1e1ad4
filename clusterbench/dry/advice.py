"""Single changes to a step that save memory; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, active_in, objection_to
from clusterbench.precision import MASTER

LOSS_CHUNKS, HALF = 8, "bfloat16_moments"

Changed = tuple[str, TrainingJob, Sequence[Parallelism]]


def changes(job: TrainingJob, every: Sequence[Parallelism]) -> Iterator[Changed]:
    """What can be changed, in words, with what then is the job and its parallelisms; only what is possible."""
    for words, changed, options in _candidates(job, every):
        active = active_in(changed.layout, options)
        if changed.objection() is None and objection_to(changed, active) is None:
            yield words, changed, options


def _candidates(job: TrainingJob, every: Sequence[Parallelism]) -> Iterator[Changed]:
    layout = job.layout
    if layout.tp > 1 and not layout.sp:
        yield "+sp", replace(job, layout=replace(layout, sp=True)), every
    for stage in range(layout.zero + 1, 4):
        if layout.degree("dp_cp") > 1:
            yield f"+zero{stage}", replace(job, layout=replace(layout, zero=stage)), every
    if job.micro_batch_size > 1:
        half = job.micro_batch_size // 2
        yield f"micro_batch_size {half}", replace(job, micro_batch_size=half), every
    if layout.shards_gradients and (options := _with(every, "offload", True)):
        yield "offload", job, options
    for kind in ("selective", "full"):
        if options := _with(every, "recompute", kind):
            yield f"recompute {kind}", job, options
    if options := _with(every, "loss_chunks", LOSS_CHUNKS):
        yield f"loss_chunks {LOSS_CHUNKS}", job, options
    if job.dtype == "bfloat16" and job.precision == MASTER:
        yield f"precision {HALF}", replace(job, precision=HALF), every


def _with(every: Sequence[Parallelism], option: str, value: str | int) -> Sequence[Parallelism] | None:
    """The same with one option changed; None where it has that value already."""
    changed = [
        replace(each, **{option: value})
        if any(field.name == option for field in fields(each)) and getattr(each, option) != value
        else each
        for each in every
    ]
    return None if changed == list(every) else changed
