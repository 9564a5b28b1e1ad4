"""The FLOPs ranks counted in one step, held against the formula: rank by rank, and all together against the shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from clusterbench.expected.flops import METRIC, UNVERIFIED, Work, executed_by_all, executed_by_rank, routed_kind
from clusterbench.job import TrainingJob
from clusterbench.job.flops import BATCHED_PRODUCTS, UNKNOWN
from clusterbench.job.passes import Executed
from clusterbench.parallel import Parallelism, active_in, from_options, part_of
from clusterbench.types import Case, Metric, split_key
from clusterbench.units import format_value


@dataclass(frozen=True)
class Difference:
    """FLOPs of one step that were counted where the formula has others.

    Attributes
    ----------
    where
        ``rank 3``, ``the ranks of pp 1`` or ``all ranks``.
    what
        A kind of operators with the part of the step, or an operator that has no formula.
    counted, formula
        FLOPs; of an operator without a formula its calls, and 0.
    """

    where: str
    what: str
    counted: int
    formula: int

    @property
    def by(self) -> str:
        """How far they are apart, in words."""
        if self.formula:
            return f"{100 * self.counted / self.formula - 100:+.3g} % against the formula"
        return "counted where the formula has none"

    def __str__(self) -> str:
        return f"FLOPs of {self.what} on {self.where} are {self.by}"


_KEY = f"{METRIC}["
DIFFERS = "differs: "
"""Begins the basis of the figures of a case whose FLOPs are not the formula's."""


def executed_metrics(case: Case, ranks: Sequence[Sequence[Executed]], found: Sequence[Difference]) -> Iterator[Metric]:
    """FLOPs of all ranks together by kind; nothing where none were counted."""
    flops = dict.fromkeys((split_key(key)[1]["part"] for key in case.expected if _is_of_flops(key)), 0)
    for executed in chain.from_iterable(ranks):
        if executed.kind != UNKNOWN:
            flops[executed.kind] = flops.get(executed.kind, 0) + executed.flops
    basis = f"{DIFFERS}{found[0]}" if found else ""
    for kind, number in flops.items() if ranks else ():
        yield Metric(METRIC, "FLOP", float(number), detail={"part": kind}, basis=basis)


def is_void(case: Case, found: Sequence[Difference]) -> bool:
    """Whether rates of FLOPs say nothing: the formula is exact, and the step is not the step it describes."""
    return bool(found) and not is_unverified(case)


def is_unverified(case: Case) -> bool:
    """Whether the formulas were never held against a device of this kind."""
    return any(_is_of_flops(key) and what.basis.startswith(UNVERIFIED) for key, what in case.expected.items())


def differences(case: Case, job: TrainingJob, ranks: Sequence[Sequence[Executed]]) -> list[Difference]:
    """Where a case's FLOPs are not the formula's, what has none first; empty for a case without an expectation.

    Each rank is compared with the layers that its layout gives it, and the ranks of a pipeline together with the layers
    of the shape: a stage that is cut wrongly in model and formula alike shows in the sum.

    Parameters
    ----------
    ranks
        What each of them left, in rank order.
    """
    if not ranks or not any(map(_is_of_flops, case.expected)):
        return []
    active = active_in(job.layout, from_options(case.point))
    found = [*_without_formula(ranks), *_of_ranks(ranks, active, job, str(case.point["rank_order"]))]
    if not found and job.layout.uses("pp"):  # without stages each rank was held against the shape
        total: Counter[Work] = sum((_counted(rank) for rank in ranks), Counter())
        found = [*_differing("all ranks", total, executed_by_all(active, job), _unjudged(active))]
    return sorted(found, key=lambda difference: (difference.formula > 0, -abs(difference.counted - difference.formula)))


def _is_of_flops(key: str) -> bool:
    return key.startswith(_KEY)


def _unjudged(active: Sequence[Parallelism]) -> set[str]:
    return {BATCHED_PRODUCTS} if any(parallelism.multiplies for parallelism in active) else set()


def _without_formula(ranks: Sequence[Sequence[Executed]]) -> Iterator[Difference]:
    for rank, of_rank in enumerate(ranks):
        for executed in of_rank:
            if executed.kind == UNKNOWN:
                what = f"{executed.operator}, for which no formula is known"
                yield Difference(f"rank {rank}", what, executed.count, 0)


def _of_ranks(
    ranks: Sequence[Sequence[Executed]], active: Sequence[Parallelism], job: TrainingJob, rank_order: str
) -> Iterator[Difference]:
    shared, alike = tuple(active), replace(job, seed=0)
    routed, unjudged = routed_kind(active, job), _unjudged(active)
    counted_on, formula_of = defaultdict[int, Counter[Work]](Counter), defaultdict[int, Counter[Work]](Counter)
    for rank, of_rank in enumerate(ranks):
        at = job.layout.coordinates(rank, rank_order)
        counted, expected = _counted(of_rank), _formula(shared, alike, at["pp"], at["cp"])
        if dict(counted) != dict(expected):  # Counter's own comparison is ten times slower
            yield from _differing(f"rank {rank}", counted, expected, {routed, *unjudged})
        if routed:
            counted_on[at["pp"]] += counted
            formula_of[at["pp"]] += expected
    # Where the router decides, ranks have more rows or fewer, but no row is lost on the way.
    for stage in counted_on:
        where = f"the ranks of pp {stage} together" if job.layout.uses("pp") else "all ranks together"
        kinds = {kind for kind, _ in (*counted_on[stage], *formula_of[stage])}
        yield from _differing(where, counted_on[stage], formula_of[stage], kinds - {routed})


@lru_cache(maxsize=4096)  # cases that differ in seed, machine or repeat share a job
def _formula(active: tuple[Parallelism, ...], job: TrainingJob, pp_rank: int, cp_rank: int) -> Counter[Work]:
    return executed_by_rank(active, part_of(job, active, pp_rank), cp_rank)


def _differing(where: str, counted: Counter[Work], formula: Counter[Work], but: set[str]) -> Iterator[Difference]:
    for kind, during in sorted({*counted, *formula}):
        work = kind, during
        if kind not in but and counted[work] != formula[work]:
            yield Difference(where, f"{kind} in {during}", counted[work], formula[work])


def _counted(of_rank: Sequence[Executed]) -> Counter[Work]:
    counted: dict[Work, int] = {}
    for executed in of_rank:
        if executed.kind != UNKNOWN:
            work = executed.kind, executed.during
            counted[work] = counted.get(work, 0) + executed.flops
    return Counter(counted)


def evidence(difference: Difference) -> str:
    """The two figures, to the last digit."""
    return (
        f"counted {format_value(difference.counted, 'FLOP')} ({difference.counted:,} FLOP), "
        f"formula {format_value(difference.formula, 'FLOP')} ({difference.formula:,} FLOP) in one step"
    )
