"""The FLOPs ranks counted in one step, held against the formula: rank by rank, and all together against the shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from clusterbench.expected.flops import METRIC, UNVERIFIED, Work
from clusterbench.expected.formulas import StepFormulas
from clusterbench.formulas.statistics import Summary
from clusterbench.job.flops import BATCHED_PRODUCTS, CAUSAL_ATTENTION, FORWARD, UNKNOWN
from clusterbench.job.passes import Executed
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


ATTENTION_CALLS = "attention_calls"
RATE = "executed_flops_per_s_per_rank"
_COUNTED = "operators counted in one step, what is computed again with them; causal attention as half of its square"

DIFFERS = "differs: "
"""Begins the basis of the figures of a case whose FLOPs are not the formula's."""


def executed_metrics(case: Case, ranks: Sequence[Sequence[Executed]], found: Sequence[Difference]) -> Iterator[Metric]:
    """FLOPs of all ranks together by kind; nothing where none were counted."""
    flops = dict.fromkeys((split_key(key)[1]["part"] for key in case.expected_of(METRIC)), 0)
    for executed in chain.from_iterable(ranks):
        if executed.kind != UNKNOWN:
            flops[executed.kind] = flops.get(executed.kind, 0) + executed.flops
    basis = f"{DIFFERS}{found[0]}" if found else ""
    for kind, number in flops.items() if ranks else ():
        yield Metric(METRIC, "FLOP", float(number), detail={"part": kind}, basis=basis)


_KERNELS = {
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
}
"""Operators of attention, each with the kernel that it calls."""


def attention_metrics(ranks: Sequence[Sequence[Executed]]) -> Iterator[Metric]:
    """How often which kernel computed attention in the forwards of a step, on all ranks together.

    What is made of plain products is ``math``: two for each call.
    """
    calls: defaultdict[str, float] = defaultdict(float)
    for executed in chain.from_iterable(ranks):
        if executed.during == FORWARD and executed.operator in _KERNELS:
            calls[_KERNELS[executed.operator]] += executed.count
        elif executed.during == FORWARD and executed.kind == BATCHED_PRODUCTS:
            calls["math"] += executed.count / 2
    for backend, number in sorted(calls.items()):
        yield Metric(ATTENTION_CALLS, "1", float(number), detail={"backend": backend})


def executed_rate(case: Case, ranks: Sequence[Sequence[Executed]], time: Summary) -> Iterator[Metric]:
    """FLOP/s that a rank's operators come to; nothing where none were counted.

    Operators count every block of attention in full. Kernels leave out what the causal mask hides, so half of that is
    taken here: of what the device does, and not of what is asked of it.
    """
    executed = [executed for executed in chain.from_iterable(ranks) if executed.kind != UNKNOWN]
    if executed:
        flops = sum(each.flops / (2 if each.kind == CAUSAL_ATTENTION else 1) for each in executed) / case.world_size
        rates = flops / time.value, flops / time.high, flops / time.low
        yield Metric(RATE, "FLOP/s", *rates, time.n, basis=_COUNTED)


def is_void(case: Case, found: Sequence[Difference]) -> bool:
    """Whether rates of FLOPs say nothing: the formula is exact, and the step is not the step it describes."""
    return bool(found) and not is_unverified(case)


def is_unverified(case: Case) -> bool:
    """Whether the formulas were never held against a device of this kind."""
    return any(case.expected[key].basis.startswith(UNVERIFIED) for key in case.expected_of(METRIC))


def differences(case: Case, formulas: StepFormulas, ranks: Sequence[Sequence[Executed]]) -> list[Difference]:
    """Where a case's FLOPs are not the formula's, what has none first; empty for a case without an expectation.

    Each rank is compared with the layers that its layout gives it, and the ranks of a pipeline together with the layers
    of the shape: a stage that is cut wrongly in model and formula alike shows in the sum.

    Parameters
    ----------
    ranks
        What each of them left, in rank order.
    """
    if not ranks or not case.expected_of(METRIC):
        return []
    found = [*_without_formula(ranks), *_of_ranks(ranks, formulas)]
    if not found and formulas.job.layout.uses("pp"):  # without stages each rank was held against the shape
        total = _sum(map(_counted, ranks))
        found = [*_differing("all ranks", total, formulas.executed_by_all, _unjudged(formulas))]
    if found and formulas.are_of_another_step(case, METRIC) and _is_as_planned(case, ranks):
        return []
    return sorted(found, key=lambda difference: (difference.formula > 0, -abs(difference.counted - difference.formula)))


def _is_as_planned(case: Case, ranks: Sequence[Sequence[Executed]]) -> bool:
    """Whether all ranks together computed what the plan says, and nothing that has no formula."""
    planned = {split_key(key)[1]["part"]: case.expected[key].value for key in case.expected_of(METRIC)}
    counted = Counter[str]()
    for (kind, _), flops in _sum(map(_counted, ranks)).items():
        counted[kind] += flops
    return counted == planned and not [*_without_formula(ranks)]


def _unjudged(formulas: StepFormulas) -> Set[str]:
    return {BATCHED_PRODUCTS} if formulas.multiplies_by_itself else set()


def _without_formula(ranks: Sequence[Sequence[Executed]]) -> Iterator[Difference]:
    for rank, of_rank in enumerate(ranks):
        for executed in of_rank:
            if executed.kind == UNKNOWN:
                what = f"{executed.operator}, for which no formula is known"
                yield Difference(f"rank {rank}", what, executed.count, 0)


def _of_ranks(ranks: Sequence[Sequence[Executed]], formulas: StepFormulas) -> Iterator[Difference]:
    routed, unjudged = formulas.routed_kind, _unjudged(formulas)
    counted_on = [_counted(of_rank) for of_rank in ranks]
    for rank, (counted, expected) in enumerate(zip(counted_on, formulas.executed, strict=True)):
        yield from _differing(f"rank {rank}", counted, expected, {routed, *unjudged})
    if not routed:
        return
    # Where the router decides, ranks have more rows or fewer, but no row is lost on the way.
    for stage, own in enumerate(formulas.ranks_of_stages):
        where = f"the ranks of pp {stage} together" if formulas.job.layout.uses("pp") else "all ranks together"
        counted, expected = _sum(counted_on[rank] for rank in own), _sum(formulas.executed[rank] for rank in own)
        yield from _differing(where, counted, expected, {kind for kind, _ in (*counted, *expected)} - {routed})


def _sum(of_ranks: Iterable[Mapping[Work, int]]) -> Mapping[Work, int]:
    return sum((Counter(of_rank) for of_rank in of_ranks), Counter[Work]())


def _differing(
    where: str, counted: Mapping[Work, int], formula: Mapping[Work, int], but: Set[str]
) -> Iterator[Difference]:
    if counted == formula:
        return
    for kind, during in sorted({*counted, *formula}):
        work = kind, during
        if kind not in but and counted.get(work, 0) != formula.get(work, 0):
            yield Difference(where, f"{kind} in {during}", counted.get(work, 0), formula.get(work, 0))


def _counted(of_rank: Sequence[Executed]) -> Mapping[Work, int]:
    counted: dict[Work, int] = {}
    for executed in of_rank:
        if executed.kind != UNKNOWN:
            work = executed.kind, executed.during
            counted[work] = counted.get(work, 0) + executed.flops
    return counted


def evidence(difference: Difference) -> str:
    """The two figures, to the last digit."""
    return (
        f"counted {format_value(difference.counted, 'FLOP')} ({difference.counted:,} FLOP), "
        f"formula {format_value(difference.formula, 'FLOP')} ({difference.formula:,} FLOP) in one step"
    )
