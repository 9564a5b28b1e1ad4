"""The long table, from plan and observations. Pure: run it again whenever a formula changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterbench.benchmarks import benchmarks
from clusterbench.cases import Reading
from clusterbench.cases.prices import Prices
from clusterbench.derive.environment_ratios import environment_ratio_rows
from clusterbench.derive.figures import with_figures
from clusterbench.derive.histories import histories_of
from clusterbench.derive.of_last_copy import of_last_copy
from clusterbench.derive.rows_of_cases import STEP_TIME, case_rows, refusal_rows
from clusterbench.derive.table import columns_of, csv_of, lines_of
from clusterbench.derive.without_secrets import (
    environment_without_secrets,
    outcomes_without_secrets,
    plan_without_secrets,
)
from clusterbench.errors import SuiteError, path_of
from clusterbench.fingerprint import OPTION
from clusterbench.rows import COLUMNS, DETAILS, Row
from clusterbench.run_folder import RATES, RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.run_folder.rounds import cut_short
from clusterbench.types import VOID, WRONG_COUNTS, Agreement, Case, Metric, Observation, Plan, metric_key

if TYPE_CHECKING:
    from pandas import DataFrame

_CASE_COLUMNS = tuple(COLUMNS[: COLUMNS.index("metric")])


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
    rows = [*rows_across_cases(run.rows, run.plan), *refusal_rows(run.name, run.plan)]
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

    rows = derive_rows(run if isinstance(run, RunFolder) else RunFolder.open(path_of(run, "folder")))
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


def read_single(run: RunFolder, rates: AskedRates = OWN_RATES) -> SingleRun:
    """A run as it was read, with the rows of each of its cases by itself; ``rates`` as for :func:`read`."""
    plan, name = plan_without_secrets(run.plan()), run.name
    problems: list[str] = []
    outcomes = list(outcomes_without_secrets(run.outcomes()))
    histories = histories_of(plan, outcomes, run.observations(), problems)
    own = [
        with_figures(of_last_copy(_refuted_by_itself(history, plan), plan), plan.cluster, problems)
        for history in histories
    ]
    judged, rows = list[History](), list[Row]()
    for history, metrics in _held_together(own):
        judged.append(history)
        rows += case_rows(name, history, metrics, plan.cluster)
    environment = environment_without_secrets(run.environment())
    prices = _prices(run, plan, environment, rates)
    rows = _with_prices(rows, prices)
    if rates.path is not None:
        prices = _said_without_effect(prices, rows)
    lacking = cut_short(plan, outcomes)
    every_problem = (*run.problems, *problems)
    short = (lacking,) if lacking else ()
    plan = replace(plan, cases=tuple(history.case for history in judged)) if plan.replanned else plan
    return SingleRun(name, plan, tuple(judged), rows, environment, every_problem, prices, short)


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


def _refuted_by_itself(history: History, plan: Plan) -> History:
    """The same, or a wrong one where a record that says it ended well holds what its check refuses."""
    for copy, observations in history.copies.items():
        if beyond := _beyond_limits(plan.case_of(history.case, copy), observations):
            return history.refuted(
                f"its record has {beyond} is allowed, and says that the case ended well: it was not checked, or the "
                "record was changed"
            )
    return history


def _beyond_limits(case: Case, observations: Sequence[Observation]) -> str:
    """``a parity_loss of 3e-05 on rank 1, where 1e-08``; empty where all evidence is within its limits."""
    limits = {key: what.value for key, what in case.expected.items() if what.basis.startswith("at most")}
    limits |= dict.fromkeys(WRONG_COUNTS, 0.0)
    for observation in observations:
        for rank, evidence in enumerate(observation.evidence):
            for name in (name for name in limits if name in evidence):
                if not evidence[name] <= limits[name]:
                    return f"a {name} of {evidence[name]:.3g} on rank {rank}, where {limits[name]:g}"
    return ""


def _held_together(derived: list[tuple[History, list[Metric]]]) -> Iterator[tuple[History, list[Metric]]]:
    """The same with how cases that compute the same agree; one that others refute is wrong, and has no figures.

    ``derived`` is empty then: a large run has a million figures, which are let go as rows are made of them.
    """
    agreements: dict[str, Agreement] = {}
    kinds = benchmarks()
    for name in {history.case.benchmark for history, _ in derived} & kinds.keys():
        agreements |= kinds[name].agreements([history for history, _ in derived if history.case.benchmark == name])
    none = Agreement(())
    derived.reverse()
    while derived:
        history, metrics = derived.pop()
        agreement = agreements.get(history.case.hash, none)
        if agreement.wrong:
            yield history.refuted(agreement.wrong + _also_counted(metrics)), []
        else:
            yield history, [*metrics, *agreement.metrics]


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
