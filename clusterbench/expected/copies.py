"""On how many ranks each element of a weight is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from clusterbench.job import TrainingJob, weight_shapes
from clusterbench.parallel import Parallelism, part_of, split_over


def copies_of(job: TrainingJob, active: Sequence[Parallelism]) -> Iterator[tuple[str, int]]:
    """Every weight of the whole model, and how many ranks have each element of it."""
    layout = job.layout
    ranks_of = {axis: ranks for parallelism in active for axis, ranks in parallelism.ranks_of.items()}
    uncut = job.uncut
    held = [weight_shapes(part_of(uncut, active, pp_rank)) for pp_rank in range(layout.pp)]
    for name in weight_shapes(job.on_one_rank()):
        on_stages = sum(name in weights for weights in held)
        split = prod(ranks_of.get(axis) or layout.degree(axis) for axis in split_over(active, name, job))
        yield name, on_stages * layout.world_size // layout.pp // split
