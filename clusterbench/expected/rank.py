"""What one rank of a layout should hold, send and execute, where it computes alone and nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterbench.expected.formulas import StepFormulas
from clusterbench.expected.memory import DEVIATION
from clusterbench.expected.step import expected_parts
from clusterbench.expected.total import fullest_moment
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism
from clusterbench.types import NOTHING_SENT, Expected, metric_key, split_key

EXECUTED = "executed_flops_per_rank"


def chosen_rank(layout: ParallelLayout, rank_order: str, asked: int | None) -> int:
    """The rank that is asked for, or the first one of the middle stage: it receives and sends in both directions.

    >>> chosen_rank(ParallelLayout.parse("pp4-tp2"), "megatron", None)
    4
    """
    return layout.rank_of({"pp": layout.pp // 2}, rank_order) if asked is None else asked


def expected_of_rank(
    job: TrainingJob, every: Sequence[Parallelism], rank: int, rank_order: str
) -> Iterator[tuple[str, Expected]]:
    """Metric key -> what is expected of ``rank``, from the formulas for its stage of the pipeline."""
    formulas = StepFormulas(job, tuple(every), rank_order)
    part = formulas.parts[formulas.places[rank][0]]
    for key, expected in expected_parts([part], [fullest_moment(formulas.active, part)], formulas.active).items():
        name, detail = split_key(key)
        if name != DEVIATION:
            yield metric_key(name, **detail, source=NOTHING_SENT), expected
    flops = sum(formulas.executed[rank].values())
    if not formulas.routed_kind and not formulas.multiplies_by_itself:
        yield metric_key(EXECUTED, source=NOTHING_SENT), Expected(float(flops), "FLOP", f"rank {rank}, {job.equation}")
