"""A step of any rank of any layout without the machine: the step that will really run, on tensors without data.

Nothing is computed and nothing is sent. What a rank holds, sends and launches follows from shapes alone, so it is that
of the real step; docs/dry_run.md says what is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterbench.job import TrainingJob
from clusterbench.parallel import Parallelism, active_in, objection_to

MOST_MICRO_BATCHES = 4096
"""Of a step that is run dry: they are run one after the other."""


def objection(job: TrainingJob, every: Sequence[Parallelism]) -> str | None:
    """Why a step cannot be dry-run, or not be run at all; None when it can."""
    active = active_in(job.layout, every)
    if (why := objection_to(job, active)) is not None:
        return why
    if job.gradient_accumulation_steps > MOST_MICRO_BATCHES:
        return (
            f"a step of {job.gradient_accumulation_steps:,} micro-batches ({job.equation}) would be run one after the "
            f"other; {MOST_MICRO_BATCHES:,} are the most, and with fewer a rank holds as much"
        )
    reasons = (parallelism.needs_data(job) for parallelism in active)
    if (why := next(filter(None, reasons), None)) is not None:
        return why
    if job.shape.has_experts and job.dtype == "float64":
        return (
            "in float64 torch multiplies no group of matrices at once, and how many rows each expert has takes data; "
            "float32 can be dry-run"
        )
    return None


def stage_ranks(job: TrainingJob, rank_order: str) -> list[int]:
    """One rank of each place along pp: the ranks of a stage hold and send alike, but for uneven shares."""
    first: dict[int, int] = {}
    for rank in range(job.layout.world_size):
        first.setdefault(job.layout.coordinates(rank, rank_order)["pp"], rank)
    return list(first.values())
