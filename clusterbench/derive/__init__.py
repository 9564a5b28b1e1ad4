"""The long table, from plan and observations. Pure: run it again whenever a formula changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.cases import Reading
from clusterbench.cases.prices import Prices
from clusterbench.cases.steadiness import DRIFT, NOT_SETTLED
from clusterbench.cluster import Cluster
from clusterbench.derive.environment_ratios import environment_ratio_rows
from clusterbench.derive.table import columns_of, csv_of, lines_of
from clusterbench.derive.without_secrets import (
    environment_without_secrets,
    outcomes_without_secrets,
    plan_without_secrets,
)
from clusterbench.errors import ClusterbenchError, SuiteError
from clusterbench.fingerprint import OPTION
from clusterbench.formulas.statistics import SETTLED_WITHIN, UNSTABLE_CV, median
from clusterbench.measured.bounds import BEYOND, without_impossible
from clusterbench.measured.disturbed import without_disturbed
from clusterbench.measured.speed import without_speed
from clusterbench.rows import COLUMNS, DETAILS, Row
from clusterbench.run_folder import RATES, RunFolder
from clusterbench.run_folder.attempts import UNSTABLE_MAX_OVER_MEDIAN, History, iteration_times, why_unusable
from clusterbench.run_folder.records import MOST
from clusterbench.run_folder.rounds import cut_short
from clusterbench.types import (
    NO_DETAIL,
    VOID,
    WRONG_COUNTS,
    Agreement,
    Metric,
    Observation,
    Outcome,
    Place,
    Plan,
    Point,
    Refusal,
    metric_key,
    split_key,
)

if TYPE_CHECKING:
    from pandas import DataFrame

_LIMIT_BASIS = "above this nccl-tests calls a figure unstable"

STEP_TIME = "step_time"

_FASTER = 1.05
"""Times as fast as the median of all: what a repeat has to be before it is held against bounds by itself."""

_CASE_COLUMNS = tuple(COLUMNS[: COLUMNS.index("metric")])
Attempt = tuple[str, int, int]
"""Hash, repeat and attempt: what an outcome and its record share."""

About = tuple[tuple[str, str, str, int, str, Point, int, int, str, str], str]
"""What the rows of a case share: the first fields of :class:`Row`, up to ``device``, and its last, the hash."""


@dataclass(frozen=True)
class SingleRun:
    """One run before anything is derived from several of its cases."""

    name: str
    plan: Plan
    histories: tuple[History, ...]
    rows: list[Row]
    environment: Mapping[str, Any]
    problems: tuple[str, ...]
    prices: Prices = field(default_factory=Prices)
    cut_short: tuple[str, ...] = ()


@dataclass(frozen=True)
class AskedRates:
    """By what training steps are to be priced.

    Attributes
    ----------
    path
        A file of rates; None for the run's own.
    accepted
        Fields in which their machine may be another than that of the run.
    """

    path: Path | None = None
    accepted: Collection[str] = ()


OWN_RATES = AskedRates()


def read(run: RunFolder, rates: AskedRates = OWN_RATES) -> Reading:
    """Everything a report needs of a run. Each record that is left out is named among the problems.

    Parameters
    ----------
    rates
        By which its training steps are priced: a file, or what the run was given, if it was.

    Raises
    ------
    SuiteError
        For a mistake of a file that is named here; one of the run's own is said, and its rates are not used.
    """
    return reading_of(read_single(run, rates))


def reading_of(run: SingleRun) -> Reading:
    """A run by itself, with the rows that need several of its cases."""
    rows = [*rows_across_cases(run.rows, run.plan), *refusal_rows(run)]
    return Reading(run.name, run.plan, run.histories, rows, run.environment, run.problems, run.prices, run.cut_short)


def derive_rows(run: RunFolder) -> list[Row]:
    """One row per figure of each case, in the order of the plan.

    A case without a figure has one row, with its status, no metric, and the reason in ``basis``: nothing that was asked
    for is a missing line.
    """
    return read(run).rows


def write_rows(run: RunFolder, rows: Sequence[Row] | None = None) -> Path:
    """``rows.csv`` in the run's folder, replaced: the long table as text; what is unknown is an empty cell.

    A text that a spreadsheet would read as a formula has an apostrophe before it, see
    :func:`~clusterbench.csv_lines.unlike_a_formula`.
    """
    return run.write("rows.csv", csv_of(derive_rows(run) if rows is None else rows))


def read_rows(run: RunFolder | Path | str) -> DataFrame:
    """The long table of a run: one row per figure.

    Parameters
    ----------
    run
        A run, or the path of its folder.

    Examples
    --------
    ``rows[rows.metric == "step_time"].groupby("layout").value.min()``
    """
    import pandas

    rows = derive_rows(run if isinstance(run, RunFolder) else RunFolder.open(Path(run)))
    columns = columns_of(rows)
    table = list(zip(*lines_of(rows), strict=True)) or [()] * len(columns)
    return pandas.DataFrame(dict(zip(columns, table, strict=True)))


def wide_rows(run: RunFolder | Path | str | DataFrame) -> DataFrame:
    """One row per case; a figure is a column named by its metric, ``step_time`` or ``traffic_bytes[axis=tp]``.

    Parameters
    ----------
    run
        A run, the path of its folder, or what :func:`read_rows` gave.
    """
    import pandas

    long = run if isinstance(run, pandas.DataFrame) else read_rows(run)
    about = [column for column in long.columns if column not in COLUMNS or column in _CASE_COLUMNS]
    cases: dict[tuple[object, ...], dict[str, object]] = {}
    for record in long.to_dict("records"):
        case = cases.setdefault((record["run"], record["case"]), {str(column): record[column] for column in about})
        detail = {name: record[name] for name in DETAILS if record[name]}
        if record["metric"]:
            case[metric_key(record["metric"], **detail)] = record["value"]
    return pandas.DataFrame(list(cases.values()))


# Records that can be used


def _histories(
    plan: Plan, outcomes: Iterable[Outcome], observations: Iterable[Observation], problems: list[str]
) -> tuple[History, ...]:
    cases = {case.hash: case for case in plan.cases}
    attempts: dict[str, list[Outcome]] = defaultdict(list)
    ended: dict[Attempt, str] = {}
    wrong: set[tuple[str, int]] = set()
    for outcome in outcomes:
        if outcome.hash not in cases:
            problems.append(f"{_of('the outcome', outcome)} belongs to no case of the plan and was left out")
        elif _attempt(outcome) in ended:
            problems.append(f"{_of('the outcome', outcome)} is there twice; the second was left out")
        else:
            attempts[outcome.hash].append(outcome)
            ended[_attempt(outcome)] = outcome.status
            if outcome.status == "wrong":
                wrong.add((outcome.hash, outcome.repeat))
    whole: dict[str, dict[int, Observation]] = defaultdict(dict)
    for observation in observations:
        if observation.hash not in cases:
            problems.append(f"{_of('the record', observation)} belongs to no case of the plan and was left out")
        elif _attempt(observation) not in ended:
            problems.append(f"{_of('the record', observation)} has no outcome and was left out")
        elif ended[_attempt(observation)] != "ok" or (observation.hash, observation.repeat) in wrong:
            continue  # measured by a case whose check failed, now or in another attempt
        elif why := why_unusable(cases[observation.hash], observation):
            problems.append(f"{observation.case}, repeat {observation.repeat + 1}: {why}; it was left out")
        else:
            before = whole[observation.hash].get(observation.repeat)
            if before is None or before.attempt <= observation.attempt:
                whole[observation.hash][observation.repeat] = observation
    return tuple(
        History(
            case,
            tuple(attempts.get(hash, ())),
            tuple(observation for _, observation in sorted(whole.get(hash, {}).items())),
        )
        for hash, case in cases.items()
    )


def _attempt(record: Outcome | Observation) -> Attempt:
    return record.hash, record.repeat, record.attempt


def _of(what: str, record: Outcome | Observation) -> str:
    return f"{record.case}, repeat {record.repeat + 1}, attempt {record.attempt}: {what}"


def _figures(history: History, cluster: Cluster, problems: list[str]) -> tuple[History, list[Metric]]:
    """The metrics of a case; records from which its benchmark cannot derive any are named and left out."""
    metrics = _metrics_or_reason(history, cluster)
    if not isinstance(metrics, str):
        return history, metrics
    wrong = {
        record.repeat: why
        for record in history.observations
        if isinstance(why := _metrics_or_reason(_only(history, record), cluster), str)
    }
    # Each record alone may be sound, and all together not.
    wrong = wrong or dict.fromkeys((record.repeat for record in history.observations), metrics)
    case = history.case
    problems += [
        f"{case.id}, repeat {repeat + 1}: '{case.benchmark}' cannot derive metrics from the record ({why:.200}); "
        "it was left out"
        for repeat, why in wrong.items()
    ]
    sound = _only(history, *(record for record in history.observations if record.repeat not in wrong))
    return _figures(sound, cluster, problems)


def repeat_metrics(history: History, cluster: Cluster) -> list[list[Metric]]:
    """The figures of each repeat by itself; of passes that a case takes once, one repeat has figures."""
    metrics = [_metrics_or_reason(_only(history, observation), cluster) for observation in history.observations]
    return [[] if isinstance(of_repeat, str) else of_repeat for of_repeat in metrics]


def _only(history: History, *observations: Observation) -> History:
    return History(history.case, history.outcomes, observations)


def _metrics_or_reason(history: History, cluster: Cluster) -> list[Metric] | str:
    """The figures of a case, or why there are none: a damaged record can make its formulas fail in any way."""
    benchmark = benchmarks().get(history.case.benchmark)
    if benchmark is None or history.pooled is None:
        return []
    try:
        place = Place(cluster, history.case.num_nodes)
        derived = [*benchmark.derive(history.case, history.pooled, place)]
        derived += _of_replaced_hosts(history, benchmark, place, {metric.key for metric in derived})
        metrics = without_impossible(history.case, derived, cluster)
        metrics = _without_impossible_repeat(history, benchmark, place, metrics)
        metrics = without_speed(metrics, history.case, cluster)
        metrics = without_disturbed(metrics, history.observations)
        for metric in metrics:
            for value in (metric.value, metric.low, metric.high):
                if value is not None and not abs(value) < MOST:
                    return f"{metric.key} would be {value:g}"
    except (ClusterbenchError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return metrics


def _without_impossible_repeat(
    history: History, benchmark: type[Benchmark], place: Place, metrics: list[Metric]
) -> list[Metric]:
    """The same without those that the fastest repeat has beyond a physical bound: it did not do the work."""
    if len(history.observations) < 2:
        return metrics
    medians_s = [median(iteration_times(seen)) for seen in history.observations]
    if median(history.times_s) <= _FASTER * min(medians_s):  # as fast as the others, which are bounded already
        return metrics
    fastest = history.observations[medians_s.index(min(medians_s))]
    by_itself = without_impossible(history.case, [*benchmark.derive(history.case, fastest, place)], place.cluster)
    beyond = {metric.key: metric.basis for metric in by_itself if metric.basis.startswith(BEYOND)}
    return [
        metric._replace(value=None, basis=f"{beyond[metric.key]}, in repeat {fastest.repeat + 1}")
        if metric.value is not None and metric.key in beyond
        else metric
        for metric in metrics
    ]


def _of_replaced_hosts(history: History, benchmark: type[Benchmark], place: Place, known: set[str]) -> Iterator[Metric]:
    """What repeats on other hosts than those that are pooled have of such a host: its links, its own step."""
    for others in history.by_hosts[1:]:
        assert others.pooled is not None
        for metric in benchmark.derive(history.case, others.pooled, place):
            if metric.key not in known:
                known.add(metric.key)
                yield metric


# Rows


def read_single(run: RunFolder, rates: AskedRates = OWN_RATES) -> SingleRun:
    """A run as it was read, with the rows of each of its cases by itself; ``rates`` as for :func:`read`."""
    plan, name = plan_without_secrets(run.plan()), run.name
    problems: list[str] = []
    outcomes = list(outcomes_without_secrets(run.outcomes()))
    histories = _histories(plan, outcomes, run.observations(), problems)
    own = [_figures(_refuted_by_itself(history), plan.cluster, problems) for history in histories]
    derived = _held_together(own)
    rows = [row for history, metrics in derived for row in _case_rows(name, history, metrics, plan.cluster)]
    histories = tuple(history for history, _ in derived)
    environment = environment_without_secrets(run.environment())
    prices = _prices(run, plan, environment, rates)
    rows = _with_prices(rows, prices)
    if rates.path is not None:
        prices = _said_without_effect(prices, rows)
    lacking = cut_short(plan, outcomes)
    every_problem = (*run.problems, *problems)
    return SingleRun(name, plan, histories, rows, environment, every_problem, prices, (lacking,) if lacking else ())


def _prices(run: RunFolder, plan: Plan, environment: Mapping[str, Any], asked: AskedRates) -> Prices:
    """By the file that is asked for, or the run's own; a mistake of that, which nobody named now, is only said."""
    path = asked.path or run.rates
    if path is None:
        if asked.accepted:
            raise SuiteError(f"{OPTION} has no effect on a run without rates, whose machine it is about.")
        return Prices()
    from clusterbench.derive.prices import prices_of  # profiles of frameworks, only now

    try:
        return prices_of(plan, environment, path, asked.accepted)
    except SuiteError as error:
        if asked.path is not None:
            raise
        words = (
            str(error)
            .replace(f"--rates {path}", RATES)
            .replace(str(path), RATES)
            .replace(".\nhint: ", "; ")
            .splitlines()[0]
        )
        return Prices(unused=(words.rstrip("."),))


def _with_prices(rows: list[Row], prices: Prices) -> list[Row]:
    """Rows with the price of its case beside each ``step_time``."""
    if not prices.by_case:
        return rows
    return [
        row._replace(expected=of_case.price.step_s, basis=of_case.basis)
        if row.metric == STEP_TIME and (of_case := prices.by_case.get(row.case)) is not None
        else row
        for row in rows
    ]


def _said_without_effect(prices: Prices, rows: Iterable[Row]) -> Prices:
    """Prices with the reason why none stands beside a measured step, where that is so though rates were named."""
    if any(row.metric == STEP_TIME and row.value is not None and row.case in prices.by_case for row in rows):
        return prices
    reasons = dict.fromkeys(prices.reasons.values())
    why = f": {', '.join(reasons)}" if reasons else ", which alone is priced"
    said = f"--rates has no effect on this run. It has no time of a case of train_step{why}"
    return replace(prices, unused=(*prices.unused, said))


def _refuted_by_itself(history: History) -> History:
    """The same, or a wrong one where a record that says it ended well holds what its check refuses."""
    expected = history.case.expected
    limits = {key: what.value for key, what in expected.items() if what.basis.startswith("at most")}
    limits |= dict.fromkeys(WRONG_COUNTS, 0.0)
    for observation in history.observations:
        for rank, evidence in enumerate(observation.evidence):
            for name in (name for name in limits if name in evidence):
                if not evidence[name] <= limits[name]:
                    return history.refuted(
                        f"its record has a {name} of {evidence[name]:.3g} on rank {rank}, where {limits[name]:g} is "
                        "allowed, and says that the case ended well: it was not checked, or the record was changed"
                    )
    return history


def _held_together(derived: Sequence[tuple[History, list[Metric]]]) -> list[tuple[History, list[Metric]]]:
    """The same with how cases that compute the same agree; one that others refute is wrong, and has no figures."""
    agreements: dict[str, Agreement] = {}
    kinds = benchmarks()
    for name in {history.case.benchmark for history, _ in derived} & kinds.keys():
        agreements |= kinds[name].agreements([history for history, _ in derived if history.case.benchmark == name])
    none = Agreement(())
    held = [(history, metrics, agreements.get(history.case.hash, none)) for history, metrics in derived]
    return [
        (history.refuted(agreement.wrong + _also_counted(metrics)), [])
        if agreement.wrong
        else (history, [*metrics, *agreement.metrics])
        for history, metrics, agreement in held
    ]


def _also_counted(metrics: Sequence[Metric]) -> str:
    """What made figures of a case void by themselves, which says more of the cause than that its numbers are wrong."""
    void = dict.fromkeys(metric.basis.removeprefix(VOID) for metric in metrics if metric.basis.startswith(VOID))
    return f" Found as well: {'; '.join(void)}." if void else ""


def rows_across_cases(rows: Sequence[Row], plan: Plan) -> list[Row]:
    """The rows of cases, and those that need more than one case; in the order of the plan."""
    kinds, within = benchmarks(), tuple(rows)
    all_rows = list(rows)
    for name in sorted({case.benchmark for case in plan.cases} & kinds.keys()):
        all_rows.extend(kinds[name].across(within))
    all_rows.extend(environment_ratio_rows(within))
    place = {case.id: position for position, case in enumerate(plan.cases)}
    all_rows.sort(key=lambda row: place[row.case])
    return all_rows


def refusal_rows(run: SingleRun) -> Iterator[Row]:
    """One row for each refusal."""
    return (_refusal_row(run.name, run.plan, refusal) for refusal in run.plan.refusals)


def _case_rows(run: str, history: History, metrics: Sequence[Metric], cluster: Cluster) -> Iterator[Row]:
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
