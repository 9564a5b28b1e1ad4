"""How long the ranks of a pipeline wait for one another; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbench.expected.flops import executed_by_rank
from clusterbench.formulas.schedules.timeline import Bubble, bubble_formula, bubble_of_stages
from clusterbench.job import TrainingJob
from clusterbench.job.flops import FORWARD
from clusterbench.parallel import Parallelism, of_kind, part_of
from clusterbench.parallel.pipeline import Pipeline


def expected_bubble(active: Sequence[Parallelism], job: TrainingJob) -> Bubble | None:
    """Idle share of a step; None without a pipeline, or where too few micro-batches keep every rank busy.

    Where layers come out even over the stages, by the schedule's closed form, which takes all stages for equal. Where
    they do not, by the schedule played with stages that take as long as what they multiply, the head included.

    >>> from clusterbench.layout import ParallelLayout
    >>> from clusterbench.parallel import active_in, from_options
    >>> from clusterbench.shape import named_shape
    >>> job = TrainingJob(named_shape("llama-405b"), ParallelLayout.parse("pp16-tp8+sp"), 8192, 64, 1, "bfloat16")
    >>> round(expected_bubble(active_in(job.layout, from_options({})), job).value, 3)
    0.196
    """
    pipeline = of_kind(Pipeline, active)
    if pipeline is None:
        return None
    sizes = pipeline.schedule, job.layout.pp, job.gradient_accumulation_steps, pipeline.chunks
    if job.shape.num_layers % (job.layout.pp * pipeline.chunks) == 0:
        return bubble_formula(*sizes)
    return bubble_of_stages(*sizes, forwards(active, job))


def forwards(active: Sequence[Parallelism], job: TrainingJob) -> tuple[float, ...]:
    """FLOPs of the forward of each stage, in the order of the model."""
    parts = (part_of(job, active, pp_rank).of_chunks for pp_rank in range(job.layout.pp))
    stages = sorted((of_stage for part in parts for of_stage in part), key=lambda part: part.held[0].stage)
    work = [executed_by_rank(active, stage) for stage in stages]
    return tuple(sum(flops for (_, during), flops in of.items() if during == FORWARD) for of in work)
