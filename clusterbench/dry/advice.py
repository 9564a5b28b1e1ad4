"""Changes to a step that save memory, one or two at a time; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice, pairwise

from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, active_in, objection_to
from clusterbench.precision import MASTER, NARROW, PRECISIONS, WIDE

LOSS_CHUNKS, MOST_CHUNKS = (8, 64, 512), 4096
"""In so many the loss is advised, or in the next number of chunks that divides a rank's tokens, below the last one."""

Changed = tuple[str, TrainingJob, Sequence[Parallelism]]


def changes(job: TrainingJob, every: Sequence[Parallelism]) -> Iterator[Changed]:
    """What can be changed, in words, with what then is the job and its parallelisms; only what is possible.

    Of one option the values follow each other from that which changes least.
    """
    for words, changed, options in _candidates(job, every):
        active = active_in(changed.layout, options)
        if changed.objection() is None and objection_to(changed, active) is None:
            yield words, changed, options


def pairs_of_changes(job: TrainingJob, every: Sequence[Parallelism]) -> Iterator[Changed]:
    """Two of these together, of two options, in either order."""
    for first, changed, options in changes(job, every):
        for second, both, with_both in changes(changed, options):
            if first.split(" ")[0].rstrip("123") != second.split(" ")[0].rstrip("123"):
                yield f"{first} and {second}", both, with_both


def _candidates(job: TrainingJob, every: Sequence[Parallelism]) -> Iterator[Changed]:
    layout = job.layout
    if layout.tp > 1 and not layout.sp:
        yield "+sp", replace(job, layout=replace(layout, sp=True)), every
    for stage in range(layout.zero + 1, 4):
        if layout.degree("dp_cp") > 1:
            yield f"+zero{stage}", replace(job, layout=replace(layout, zero=stage)), every
    for fewer in range(job.micro_batch_size - 1, 0, -1):
        if job.micro_batch_size % fewer == 0:
            yield f"micro_batch_size {fewer}", replace(job, micro_batch_size=fewer), every
    if layout.shards_gradients and (options := _with(every, "offload", True)):
        yield "offload", job, options
    for kind in ("selective", "full"):
        if options := _with(every, "recompute", kind):
            yield f"recompute {kind}", job, options
    for number in _divisors(job.local_tokens):
        if options := _with(every, "loss_chunks", number):
            yield f"loss_chunks {number}", job, options
    if job.dtype == "bfloat16":
        yield from _narrower(job, every)


def _narrower(job: TrainingJob, every: Sequence[Parallelism]) -> Iterator[Changed]:
    if job.precision == MASTER and job.gradient_dtype == WIDE:
        yield f"gradient_dtype {NARROW}", replace(job, gradient_dtype=NARROW), every
    kinds = list(PRECISIONS)
    for kind in kinds[kinds.index(job.precision) + 1 :]:
        gradients = job.gradient_dtype if PRECISIONS[kind].weight == PRECISIONS[MASTER].weight else WIDE
        yield f"precision {kind}", replace(job, precision=kind, gradient_dtype=gradients), every


def _divisors(tokens: int) -> Iterator[int]:
    """The first from each of :data:`LOSS_CHUNKS` on."""
    for least, above in pairwise((*LOSS_CHUNKS, MOST_CHUNKS)):
        yield from islice((number for number in range(least, above) if tokens % number == 0), 1)


def _with(every: Sequence[Parallelism], option: str, value: str | int) -> Sequence[Parallelism] | None:
    """The same with one option changed; None where it has that value already."""
    changed = [
        replace(each, **{option: value})
        if any(field.name == option for field in fields(each)) and getattr(each, option) != value
        else each
        for each in every
    ]
    return None if changed == list(every) else changed
