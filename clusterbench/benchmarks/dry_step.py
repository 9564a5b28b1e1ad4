"""A training step on tensors without data: what ``clusterbench run --dry`` makes cases of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clusterbench.benchmarks import Benchmark
from clusterbench.errors import SuiteError
from clusterbench.formulas.collectives import link_bytes
from clusterbench.job.dry import DRY, DryRank
from clusterbench.job.passes import Moved
from clusterbench.measured.traffic import traffic_metrics
from clusterbench.types import (
    DRY_RUN,
    Case,
    Expected,
    Metric,
    MetricKind,
    Observation,
    Place,
    Point,
    Step,
    metric_key,
    split_key,
)

if TYPE_CHECKING:
    from clusterbench.engine.rig import Rig

EXPECTED = ("peak_memory", "traffic_bytes", "collectives")
"""Of what is expected of a training step, what a dry run tells as well."""


@dataclass(frozen=True, kw_only=True)
class DryStep(Benchmark):
    """What a rank of a training step holds, sends and launches, worked out without a machine by ``run --dry``.

    The step is that of ``train_step``, on tensors that have a shape and no data: nothing is timed, so there are no
    tokens/s, and nothing is proven. The seconds of a case are those that its dry run took. Figures are of the fullest
    or busiest of the ranks that were run dry, one of each pipeline stage.
    """

    is_timed: ClassVar[bool] = False
    metrics: ClassVar[tuple[MetricKind, ...]] = (
        MetricKind(
            "peak_memory", "B", "lower", "most bytes in live tensors during a step, on the fullest rank", exact=True
        ),
        MetricKind("host_memory", "B", "lower", "most bytes of it in the host's memory, by category", exact=True),
        MetricKind("memory_share", "fraction", "lower", "the whole of them over the memory of the card", exact=True),
        MetricKind(
            "traffic_bytes", "B", "lower", "bytes x bus factor one rank moves along an axis in a step", exact=True
        ),
        MetricKind(
            "collectives", "1", "lower", "collectives one rank takes part in along an axis in a step", exact=True
        ),
        MetricKind(
            "collective_chain", "1", "lower", "collectives that wait for one another, the longest chain", exact=True
        ),
        MetricKind("operators", "1", "lower", "operators that the host launches for a micro-batch", exact=True),
        MetricKind(
            "executed_flops_per_rank", "FLOP", "neither", "of products and attention, in a step of one rank", exact=True
        ),
        MetricKind("operator_flops", "FLOP", "neither", "of it, by part of the model and kind of operator", exact=True),
        MetricKind(
            "operator_bytes",
            "B",
            "lower",
            "read and written by these, as if no cache held any",
            exact=True,
        ),
        MetricKind("dry_run_time", "s", "neither", "CPU seconds that running it dry took, all its ranks"),
    )

    def points(self, place: Place) -> Iterable[Point]:
        return [{"source": "no suite"}]

    def label(self, point: Point) -> str:
        return "no-suite"

    def objection(self, point: Point, place: Place) -> str | None:
        return "'dry_step' is no benchmark of a suite: 'clusterbench run --dry SUITE' makes its cases of train_step's"

    @classmethod
    def prepare(cls, rig: Rig, point: Point) -> Step:
        raise SuiteError("a dry run has no machine on which it could be measured.")

    @classmethod
    def derive(cls, case: Case, observation: Observation, place: Place) -> Iterable[Metric]:
        ranks = [rank for rank in DRY.of(observation) if rank is not None]
        if not ranks:
            return
        for metric in _figures(ranks, place):
            yield metric._replace(detail={**metric.detail, "source": DRY_RUN})


def expected_of_dry(case: Case) -> dict[str, Expected]:
    """What is expected of a training case and can be held against its dry run."""
    keys = [(metric, key) for metric in EXPECTED for key in case.expected_of(metric)]
    return {metric_key(metric, **split_key(key)[1], source=DRY_RUN): case.expected[key] for metric, key in keys}


def _figures(ranks: Sequence[DryRank], place: Place) -> Iterator[Metric]:
    for category in ranks[0].memory:
        fullest = max(ranks, key=lambda rank: rank.memory[category])
        peak_at = fullest.peak_at or "the step"
        basis = "; ".join([f"rank {fullest.rank}, in {peak_at}", *fullest.left_out]) if category == "total" else ""
        yield Metric("peak_memory", "B", fullest.memory[category], detail={"category": category}, basis=basis)
    for category in ranks[0].host:
        most = max(rank.host.get(category, 0) for rank in ranks)
        yield Metric("host_memory", "B", float(most), detail={"category": category})
    card = place.cluster.accelerator
    if card is not None and card.memory_bytes:
        basis = f"of the {card.memory_bytes / 1e9:g} GB of {place.cluster.gpu_name}"
        needed = max(rank.memory["total"] for rank in ranks)
        yield Metric("memory_share", "fraction", needed / card.memory_bytes, basis=basis)
    yield from traffic_metrics([moved_in(rank) for rank in ranks], [])
    longest = max(ranks, key=lambda rank: sum(rank.chain.values()))
    for axis, count in longest.chain.items():
        yield Metric("collective_chain", "1", count, detail={"axis": axis}, basis=f"rank {longest.rank}")
    yield Metric("operators", "1", max(rank.operators for rank in ranks))
    busiest = max(ranks, key=_flops)
    yield Metric("executed_flops_per_rank", "FLOP", float(_flops(busiest)), basis=f"rank {busiest.rank}")
    yield from _work(busiest)
    yield Metric("dry_run_time", "s", sum(rank.spent_s for rank in ranks))


def _flops(rank: DryRank) -> int:
    return sum(executed.flops for executed in rank.executed)


def _work(rank: DryRank) -> Iterator[Metric]:
    """What is computed, and what is read and written for it, by part of the model and kind of operator."""
    for work in rank.work:
        detail = {"category": work.where, "part": f"{work.during} {work.kind}"}
        basis = f"rank {rank.rank}, {work.count:,} operators"
        if work.flops:
            yield Metric("operator_flops", "FLOP", float(work.flops), detail=detail, basis=basis)
        yield Metric("operator_bytes", "B", float(work.moved_bytes), detail=detail, basis=basis)


def moved_in(rank: DryRank) -> list[Moved]:
    """What a rank sends in a step, by axis and kind."""
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    on_link: dict[tuple[str, str], float | None] = {}
    for sent in rank.sent:
        kind = sent.axis, sent.op
        counts[kind] += sent.count
        sizes[kind] += sent.count * sent.size_bytes
        each, before = link_bytes(sent.op, sent.size_bytes, sent.group_size), on_link.get(kind, 0.0)
        on_link[kind] = None if each is None or before is None else before + sent.count * each
    return [Moved(*kind, counts[kind], sizes[kind], on_link[kind]) for kind in counts]
