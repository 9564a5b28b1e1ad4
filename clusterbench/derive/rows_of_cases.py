"""Rows of the long table: one for each metric of a case, and for each refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from clusterbench.benchmarks import benchmarks
from clusterbench.cases.steadiness import DRIFT, NOT_SETTLED
from clusterbench.cluster import Cluster
from clusterbench.formulas.statistics import SETTLED_WITHIN, UNSTABLE_CV
from clusterbench.rows import Row
from clusterbench.run_folder.attempts import UNSTABLE_MAX_OVER_MEDIAN, History
from clusterbench.types import NO_DETAIL, Metric, Plan, Point, Refusal, metric_key, split_key

_LIMIT_BASIS = "above this nccl-tests calls a figure unstable"

STEP_TIME = "step_time"

About = tuple[tuple[str, str, str, int, str, Point, int, int, str, str], str]
"""What the rows of a case share: the first fields of :class:`Row`, up to ``device``, and its last, the hash."""


def refusal_rows(run: str, plan: Plan) -> Iterator[Row]:
    """One row for each refusal."""
    return (_refusal_row(run, plan, refusal) for refusal in plan.refusals)


def case_rows(run: str, history: History, metrics: Sequence[Metric], cluster: Cluster) -> Iterator[Row]:
    """One for each metric of a case, and one that says why where it has no figure."""
    case, observation = history.case, history.pooled
    if observation is None:
        yield _no_figure(_about(run, history, ""), _why_no_figure(history))
        return
    about = _about(run, history, " ".join(dict.fromkeys(host for good in history.observations for host in good.hosts)))
    if case.benchmark not in benchmarks():
        yield _no_figure(about, f"this clusterbench has no benchmark '{case.benchmark}'")
        return
    unseen = dict(case.expected)
    first, identity = about
    # A tuple out of tuples, without calls between: a large run has a million rows, and each call costs a tenth of it.
    for name, unit, value, low, high, iterations, own_detail, expected, basis in (
        *metrics,
        *_steadiness(history, cluster),
    ):
        key, detail = _named(name, *own_detail.items())
        planned = unseen.pop(key, None) or case.expected.get(key)
        if expected is None and planned is not None:
            expected, basis = planned.value, basis or planned.basis
        figure = name, unit, value, low, high, iterations, expected, basis, detail, identity
        yield Row._make((*first, *figure))
    for key, planned in unseen.items():  # expected before the run and not measured
        name, detail = split_key(key)
        figure = name, planned.unit, None, None, None, 0, planned.value, planned.basis, detail, identity
        yield Row._make((*first, *figure))


def _about(run: str, history: History, hosts: str) -> About:
    case = history.case
    about = (run, case.id, case.benchmark, case.version, history.status)
    point = {**case.environment, **case.point} if case.environment else case.point
    return (*about, point, case.num_nodes, case.world_size, hosts, case.device), case.hash


@cache
def _named(name: str, *detail: tuple[str, str]) -> tuple[str, Mapping[str, str]]:
    """The key of a metric, and its detail as one object for the rows of all cases."""
    return metric_key(name, **dict(detail)), dict(detail) or NO_DETAIL


def _steadiness(history: History, cluster: Cluster) -> Iterator[Metric]:
    """How far the figures of a case can be trusted; ``expected`` is the limit, not a forecast."""
    spread = history.spread
    if spread is not None and spread.num_iterations > 1 and cluster.ranks_per_gpu == 1:
        yield Metric(
            "time_cv", "fraction", spread.cv, iterations=spread.num_iterations, expected=UNSTABLE_CV, basis=_LIMIT_BASIS
        )
        yield Metric(
            "time_max_over_median",
            "1",
            spread.max_over_median,
            iterations=spread.num_iterations,
            expected=UNSTABLE_MAX_OVER_MEDIAN,
            basis=_LIMIT_BASIS,
        )
    yield from _settling(history)


def _settling(history: History) -> Iterator[Metric]:
    """How far the clocks had settled before a case was timed; nothing where its warm-up was counted."""
    timing = history.pooled.timing if history.pooled is not None else ()
    if not timing or (warm_up := timing[0].warm_up) is None:
        return
    apart = f"the last two stretches of {warm_up.seconds:.1f} s of warm-up"
    basis = f"{apart} agree" if warm_up.is_settled else f"{NOT_SETTLED}: {apart} do not agree"
    if warm_up.calls > 1:
        basis += f"; each sample is the mean of {warm_up.calls:,} iterations"
    yield Metric(DRIFT, "fraction", warm_up.drift, expected=SETTLED_WITHIN, basis=basis)


def _no_figure(about: About, why: str) -> Row:
    first, identity = about
    return Row._make((*first, "", "", None, None, None, 0, None, why, NO_DETAIL, identity))


def _why_no_figure(history: History) -> str:
    if history.outcome is None:
        return "not run yet"
    if history.outcome.status == "ok":
        return "it ended well, but its record in observations.jsonl is missing or damaged"
    return history.outcome.reason or f"ended as {history.outcome.status}, without a reason"


def _refusal_row(run: str, plan: Plan, refusal: Refusal) -> Row:
    return Row(
        run=run,
        case=refusal.id,
        benchmark=refusal.benchmark,
        version=0,
        status="refused",
        point=refusal.point,
        num_nodes=refusal.num_nodes,
        world_size=0,
        hosts="",
        device=plan.cluster.device,
        metric="",
        unit="",
        value=None,
        basis=refusal.reason,
    )
