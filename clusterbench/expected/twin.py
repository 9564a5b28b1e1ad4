"""The small twin of a job, on which a layout is compared with one rank; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm

from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, active_in

TWIN_TOKENS = 16
TWIN_MICRO_BATCH_SIZE = 2
TWIN_GRAD_NORM = 1.0
"""Well below the norm of a twin's gradients, so that they are clipped."""


def twin_of(job: TrainingJob, parallelisms: Sequence[Parallelism]) -> TrainingJob:
    """The small job a layout is checked on: at least two of everything that is looped over.

    Two sequences in a micro-batch; three micro-batches, or one more than fill the pipeline; two layers in each stage,
    or in those that have one more than others; a sequence of which every rank has a part.
    """
    needs = [parallelism.routed_by_place().twin(job) for parallelism in active_in(job.layout, parallelisms)]
    unit = lcm(*(need.seq_unit for need in needs))
    micro_batches = max((need.micro_batches for need in needs), default=3)
    return replace(
        job,
        shape=job.shape.twin(
            max((need.num_layers for need in needs), default=2), max((need.head_dim for need in needs), default=0)
        ),
        seq_len=-(-TWIN_TOKENS // unit) * unit,
        micro_batch_size=TWIN_MICRO_BATCH_SIZE,
        global_batch_size=micro_batches * TWIN_MICRO_BATCH_SIZE * job.layout.dp,
        max_grad_norm=None if job.max_grad_norm is None else min(job.max_grad_norm, TWIN_GRAD_NORM),
    )
