"""From what was planned and seen to the long table. Pure: run it again whenever a formula changes."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.formulas.statistics import UNSTABLE_CV, median
from clusterbench.history import UNSTABLE_MAX_OVER_MEDIAN, History, Reading, complaint, iteration_times
from clusterbench.rows import COLUMNS, Row
from clusterbench.run_directory import RunDirectory
from clusterbench.types import Metric, Observation, Outcome, Plan, Point, Refusal, metric_key

if TYPE_CHECKING:
    from pandas import DataFrame

_LIMIT_BASIS = "above this nccl-tests calls a figure unstable"

_CASE_COLUMNS = tuple(COLUMNS[: COLUMNS.index("metric")])
_DETAILS = ("category", "axis", "flops_convention", "peak")

# A row's own columns stand before, between and behind those that come from its point and its detail.
_FIRST = attrgetter(*COLUMNS[: COLUMNS.index("shape")])
_THEN = attrgetter(*COLUMNS[COLUMNS.index("num_nodes") : COLUMNS.index("category")])
_LAST = attrgetter(*COLUMNS[COLUMNS.index("unit") :])


def read(run: RunDirectory) -> Reading:
    """Everything a report needs of a run."""
    plan = run.plan()
    problems: list[str] = []
    histories = _histories(plan, run.outcomes(), run.observations(), problems)
    rows = _rows(run.name, plan, histories)
    return Reading(run.name, plan, histories, rows, run.environment(), (*run.problems, *problems))


def derive_rows(run: RunDirectory) -> list[Row]:
    """One row per figure of each case, in the order of the plan.

    A case without a figure has one row, with its status, no metric, and the reason in ``basis``: nothing that was asked
    for is a missing line.
    """
    return read(run).rows


def write_rows(run: RunDirectory, rows: Sequence[Row] | None = None) -> Path:
    """``rows.csv`` in the run's folder, replaced."""
    return run.write("rows.csv", rows_csv(derive_rows(run) if rows is None else rows))


def rows_csv(rows: Sequence[Row]) -> str:
    """The long table as text; what is unknown is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(rows))
    writer.writerows(_lines(rows))
    return text.getvalue()


def read_rows(run: RunDirectory | Path | str) -> DataFrame:
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

    rows = derive_rows(run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run)))
    columns = _columns(rows)
    table = list(zip(*_lines(rows), strict=True)) or [()] * len(columns)
    return pandas.DataFrame(dict(zip(columns, table, strict=True)))


def wide_rows(run: RunDirectory | Path | str | DataFrame) -> DataFrame:
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
        detail = {name: record[name] for name in _DETAILS if record[name]}
        if record["metric"]:
            case[metric_key(record["metric"], **detail)] = record["value"]
    return pandas.DataFrame(list(cases.values()))


def _histories(
    plan: Plan, outcomes: Iterable[Outcome], observations: Iterable[Observation], problems: list[str]
) -> tuple[History, ...]:
    attempts: dict[str, list[Outcome]] = defaultdict(list)
    good: dict[tuple[str, int, int], bool] = {}
    for outcome in outcomes:
        attempts[outcome.hash].append(outcome)
        good[outcome.hash, outcome.repeat, outcome.attempt] = outcome.status == "ok"
    cases = {case.hash: case for case in plan.cases}
    whole: dict[str, dict[int, Observation]] = defaultdict(dict)
    for observation in observations:
        if observation.hash not in cases or not good.get((observation.hash, observation.repeat, observation.attempt)):
            continue
        why = complaint(cases[observation.hash], observation)
        if why:
            problems.append(f"{observation.case}, repeat {observation.repeat}: {why}; it was left out")
            continue
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


def _rows(run: str, plan: Plan, histories: Sequence[History]) -> list[Row]:
    known = benchmarks()
    rows = [row for history in histories for row in _case_rows(run, history, known.get(history.case.benchmark))]
    derived = tuple(rows)
    for name in sorted({history.case.benchmark for history in histories} & known.keys()):
        rows.extend(known[name].across(derived))
    place = {history.case.id: position for position, history in enumerate(histories)}
    rows.sort(key=lambda row: place[row.case])
    rows.extend(_refusal_row(run, plan, refusal) for refusal in plan.refusals)
    return rows


def _case_rows(run: str, history: History, benchmark: type[Benchmark] | None) -> Iterator[Row]:
    case, observation = history.case, history.pooled
    if observation is None:
        yield _row(run, history, "", _why_no_figure(history))
        return
    hosts = " ".join(dict.fromkeys(host for good in history.observations for host in good.hosts))
    if benchmark is None:
        yield _row(run, history, hosts, f"this clusterbench has no benchmark '{case.benchmark}'")
        return
    derived = list(benchmark.derive(case, observation))
    for metric in (*derived, *_steadiness(observation)):
        yield _metric_row(run, history, hosts, metric)
    for key in case.expected.keys() - {metric.key for metric in derived}:
        yield _expected_row(run, history, hosts, key)


def _steadiness(observation: Observation) -> Iterator[Metric]:
    """How far the figures of a case can be trusted; ``expected`` is the limit, not a forecast."""
    times_s = iteration_times(observation)
    count = len(times_s)
    if count > 1:
        cv, slowest = _cv(times_s), max(times_s) / median(times_s)
        yield Metric("time_cv", "fraction", cv, iterations=count, expected=UNSTABLE_CV, basis=_LIMIT_BASIS)
        yield Metric(
            "time_max_over_median",
            "1",
            slowest,
            iterations=count,
            expected=UNSTABLE_MAX_OVER_MEDIAN,
            basis=_LIMIT_BASIS,
        )


def _cv(times_s: Sequence[float]) -> float:
    """What ``coefficient_of_variation`` gives, in floats: its exact fractions take 2 s in a report of 20,000 cases."""
    mean_s = math.fsum(times_s) / len(times_s)
    return math.sqrt(math.fsum((time_s - mean_s) ** 2 for time_s in times_s) / (len(times_s) - 1)) / mean_s


def _metric_row(run: str, history: History, hosts: str, metric: Metric) -> Row:
    case = history.case
    expected, basis = metric.expected, metric.basis
    if expected is None and (planned := case.expected.get(metric.key)):
        expected, basis = planned.value, basis or planned.basis
    return Row(
        run=run,
        case=case.id,
        benchmark=case.benchmark,
        version=case.version,
        status=history.status,
        point=case.point,
        num_nodes=case.num_nodes,
        world_size=case.world_size,
        hosts=hosts,
        device=case.device,
        metric=metric.name,
        unit=metric.unit,
        value=metric.value,
        low=metric.low,
        high=metric.high,
        iterations=metric.iterations,
        expected=expected,
        basis=basis,
        detail=metric.detail,
    )


def _expected_row(run: str, history: History, hosts: str, key: str) -> Row:
    """A figure that was promised before the run and never seen."""
    name, _, inner = key.removesuffix("]").partition("[")
    detail = dict(pair.split("=", 1) for pair in inner.split(",") if "=" in pair)
    planned = history.case.expected[key]
    metric = Metric(name, planned.unit, None, detail=detail, iterations=0, expected=planned.value, basis=planned.basis)
    return _metric_row(run, history, hosts, metric)


def _row(run: str, history: History, hosts: str, why: str) -> Row:
    return _metric_row(run, history, hosts, Metric("", "", None, iterations=0, basis=why))


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


def _columns(rows: Sequence[Row]) -> list[str]:
    return [*COLUMNS, *_options(rows)]


def _options(rows: Sequence[Row]) -> list[str]:
    # Rows of a case share one point object, so this looks at cases, not at rows.
    points = {id(row.point): row.point for row in rows}
    return sorted({name for point in points.values() for name in point} - set(COLUMNS))


def _lines(rows: Sequence[Row]) -> Iterator[tuple[object, ...]]:
    """The cells of each row, in the order of :func:`_columns`."""
    options = _options(rows)
    point: Point | None = None
    named, tail = ("", ""), ()  # type: tuple[object, ...], tuple[object, ...]
    for row in rows:
        if row.point is not point:
            point = row.point
            named = (point.get("shape") or "", point.get("layout") or "")
            tail = tuple(point.get(name) for name in options)
        detail = tuple(row.detail.get(name, "") for name in _DETAILS)
        yield (*_FIRST(row), *named, *_THEN(row), *detail, *_LAST(row), *tail)
