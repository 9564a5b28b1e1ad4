"""Steps and drifts of the main figures over a series of runs, with what changed in the environment beside each step.

The tests, their correction and their sources stand in ``cases/series.py``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from clusterbench.benchmarks import benchmarks
from clusterbench.cases import Reading
from clusterbench.cases.series import ALPHA, FEWEST, Kind, Shift, corrected, least_probability, moves, shift_of
from clusterbench.derive import read
from clusterbench.derive.baseline import unfit
from clusterbench.errors import SuiteError
from clusterbench.formulas.statistics import median
from clusterbench.formulas.student_t import quantile
from clusterbench.measured.disturbed import DISTURBED
from clusterbench.rows import Row
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.attempts import History
from clusterbench.trend.changed import changes
from clusterbench.types import MetricKind, metric_key
from clusterbench.words import few, plural

Verdict = Literal["worse", "better", "steady", "too few runs"]

EXCLUDED, SHOWN, UNDECIDED = 0, 1, 3
"""Exit codes, as those of ``compare``: nothing is shown to be worse, something is, or of no figure anything could."""

MAIN_UNITS = ("s", "B/s", "tokens/s", "B")
"""A case's main figures are the first it declares of each: time, bandwidth, tokens/s; and all its ``peak_memory``."""

_SAME_SAMPLES = 1e-3  # as in compare/figures.py: the same measurement, said twice


@dataclass(frozen=True)
class Series:
    """One figure of one case, a value a run, in the order of the runs.

    Attributes
    ----------
    runs
        Numbers of the runs that have the figure, from 0.
    values
        In the unit of ``kind``.
    """

    case: str
    key: str
    kind: MetricKind
    runs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Course:
    """What a series came to.

    ``p`` is corrected over all figures; ``changed`` is what changed in the environment, of a step only.
    """

    series: Series
    shift: Shift
    p: float
    can_show: bool
    changed: tuple[str, ...] = ()

    @property
    def is_shown(self) -> bool:
        return self.p <= ALPHA

    @property
    def what(self) -> Kind | None:
        return self.shift.kind if self.is_shown else None

    @property
    def change(self) -> float:
        """As a fraction of the figure: over the step, or from the start of a drift to its end."""
        return math.expm1(self.shift.log)

    @property
    def worsening(self) -> float:
        """Logarithm, above 0 where the figure got worse."""
        return -self.shift.log if self.series.kind.better == "higher" else self.shift.log

    def last_beyond(self, tail: float) -> float:
        """By how much the last value is worse than all others, as a logarithm.

        0 where it is by less than they span, or where normal noise would put it there with a probability of ``tail``.
        """
        sign = -1 if self.series.kind.better == "higher" else 1
        *before, last = [sign * math.log(value) for value in self.series.values]
        beyond = last - max(before)
        usual = quantile(tail, len(before) - 1) * stdev(before) * math.sqrt(1 + 1 / len(before))
        return beyond if beyond > max(before) - min(before) and last - fmean(before) > usual else 0.0

    def verdict(self, threshold: float) -> Verdict:
        """Of a change below the threshold: steady."""
        if not self.is_shown:
            return "steady" if self.can_show else "too few runs"
        if abs(self.worsening) < math.log1p(threshold):
            return "steady"
        return "worse" if self.worsening > 0 else "better"

    @property
    def between(self) -> tuple[int, int] | None:
        """Of a step, the numbers of the last run before it and the first behind."""
        if self.what != "step":
            return None
        return self.series.runs[self.shift.before - 1], self.series.runs[self.shift.before]


@dataclass(frozen=True)
class Trend:
    """A series of runs.

    Attributes
    ----------
    runs, started
        Names and times of the runs, in order of time.
    short
        Figures of fewer than 5 runs, which are not judged.
    left_out
        Sentences about cases that do not enter.
    broken
        Cases that ended badly in the last run and had figures in an earlier one, each with how.
    """

    runs: tuple[str, ...]
    started: tuple[str, ...]
    threshold: float
    courses: tuple[Course, ...]
    short: tuple[Series, ...]
    left_out: tuple[str, ...]
    broken: tuple[str, ...] = ()

    def of(self, verdict: Verdict) -> list[Course]:
        """The worst first; of what is better, the best."""
        found = [course for course in self.courses if course.verdict(self.threshold) == verdict]
        return sorted(found, key=lambda course: -abs(course.worsening))

    @property
    def worse_at_last(self) -> list[Course]:
        """What is called neither a step nor a drift, and is far worse in the last run than in all before it."""
        last = len(self.runs) - 1
        tail = ALPHA / max(1, sum(moves(course.series.values) for course in self.courses))
        return [
            course
            for verdict in ("steady", "too few runs")
            for course in self.of(verdict)
            if course.series.runs[-1] == last and course.last_beyond(tail) > math.log1p(self.threshold)
        ]

    @property
    def is_judged(self) -> bool:
        """Whether of any figure a step could be shown."""
        return any(course.verdict(self.threshold) != "too few runs" for course in self.courses)

    @property
    def exit_code(self) -> int:
        if self.of("worse") or self.broken:
            return SHOWN
        return EXCLUDED if self.is_judged else UNDECIDED


def trend_of_folders(folders: Sequence[Path], threshold: float) -> Trend:
    """The trend of runs on disk, given in any order.

    Raises
    ------
    ClusterbenchError
        If a folder is that of no run, a run is named twice, or as in :func:`trend_of`.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise SuiteError("a run is named twice, and its figures would count twice.")
    return trend_of({str(folder): read(RunFolder.open(folder)) for folder in folders}, threshold)


def trend_of(readings: Mapping[str, Reading], threshold: float) -> Trend:
    """The same of runs that were read already, by name.

    Raises
    ------
    SuiteError
        If it is not known when a run was made or which of two was first, if a run's figures say nothing of a machine,
        or if no figure is there of 5 runs.
    """
    for name, reading in readings.items():
        if reading.is_dry or reading.shares_gpus:
            why = "it is dry" if reading.is_dry else "its ranks shared GPUs"
            raise SuiteError(f"{name} cannot be part of a trend: {why}, so its times say nothing of a machine.")
    started = _in_order({name: _started(name, reading) for name, reading in readings.items()})
    ordered = [readings[name] for name in started]
    without = [unfit(reading) for reading in ordered]
    found = list(_series(ordered, without))
    enough = [series for series in found if len(series.runs) >= FEWEST]
    left_out = tuple(_left_out(started, ordered, without))
    if not enough:
        most = max((len(series.runs) for series in found), default=0)
        said = f" Left out: {few(left_out)}." if left_out else ""
        has = f"{plural(len(ordered), 'run')} here at most {most} {'has' if most == 1 else 'have'} one"
        raise SuiteError(
            f"a trend takes {FEWEST} runs that have a main figure of one case, and of {has}.{said}\n"
            f"hint: {_what_would_do(ordered, left_out)}, or hold two against each other with 'clusterbench compare'"
        )
    return Trend(
        tuple(started),
        tuple(time.isoformat() for time in started.values()),
        threshold,
        tuple(_courses(enough, ordered)),
        tuple(series for series in found if len(series.runs) < FEWEST),
        left_out,
        tuple(_broken(ordered)),
    )


def _broken(readings: Sequence[Reading]) -> Iterator[str]:
    """As ``compare`` has it of two runs, of which the last is held against all before."""
    *earlier, last = readings
    ran = {history.case.hash for reading in earlier for history in reading.histories if history.observations}
    for history in last.histories:
        if history.faults and history.case.hash in ran:
            yield f"{history.case.id} ({history.faults[0].status.replace('_', ' ')})"


def _started(name: str, reading: Reading) -> datetime:
    """When the first attempt of a run began; a time without zone counts as UTC."""
    told = [outcome.started for history in reading.histories for outcome in history.outcomes if outcome.started]
    if not told:
        why = "figures of an import have no time" if reading.is_imported else "no outcome says when it was started"
        raise SuiteError(
            f"{name}: {why}, so its place among the runs is unknown.\n"
            "hint: a series is made of runs of a suite; two imports are held against each other with 'compare'"
        )
    try:
        times = [datetime.fromisoformat(text) for text in told]
    except ValueError as error:
        raise SuiteError(f"{name}: 'started' of an outcome is no time as 2026-03-02T14:10:00: {error}.") from None
    return min(time if time.tzinfo else time.replace(tzinfo=UTC) for time in times)


def _in_order(started: Mapping[str, datetime]) -> dict[str, datetime]:
    ordered = sorted(started, key=lambda name: started[name])
    for first, second in pairwise(ordered):
        if started[first] == started[second]:
            raise SuiteError(
                f"{first} and {second} both started at {started[first].isoformat()}, so which was first is unknown. "
                "Leave out one of them."
            )
    return {name: started[name] for name in ordered}


def _series(readings: Sequence[Reading], without: Sequence[Mapping[str, str]]) -> Iterator[Series]:
    """Of all cases, by hash; of figures from the same samples, the first."""
    of_cases: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    kinds: dict[tuple[str, str], MetricKind] = {}
    for number, (reading, left_out) in enumerate(zip(readings, without, strict=True)):
        for history in reading.histories:
            if history.case.id in left_out:
                continue
            for row, kind in _main(history, reading.by_case.get(history.case.id, ())):
                key = metric_key(row.metric, **row.detail)
                of_cases[history.case.hash][key][number] = row
                kinds[history.case.hash, key] = kind
    for case, figures in of_cases.items():
        made = [
            Series(
                next(iter(rows.values())).case,
                key,
                kinds[case, key],
                tuple(rows),
                tuple(float(row.value or 0.0) for row in rows.values()),
            )
            for key, rows in figures.items()
        ]
        yield from (series for at, series in enumerate(made) if not any(_same(series, other) for other in made[:at]))


def _main(history: History, rows: Sequence[Row]) -> Iterator[tuple[Row, MetricKind]]:
    benchmark = benchmarks().get(history.case.benchmark)
    first: dict[str, MetricKind] = {}
    for kind in benchmark.metrics if benchmark else ():
        is_memory = kind.name == "peak_memory"
        is_main = kind.better != "neither" and kind.unit in MAIN_UNITS and is_memory == (kind.unit == "B")
        if is_main and any(row.metric == kind.name and row.value is not None and row.value > 0 for row in rows):
            first.setdefault(kind.unit, kind)
    for row in rows:
        main = first.get(row.unit)
        if main is not None and row.metric == main.name and row.value is not None and row.value > 0:
            yield row, main


def _same(series: Series, other: Series) -> bool:
    """Whether both are one measurement: time and rate of the same samples."""
    if series.runs != other.runs or series.kind.unit == "B" or other.kind.unit == "B":
        return False
    sums = [
        math.log(a) + math.log(b) if series.kind.better != other.kind.better else math.log(a) - math.log(b)
        for a, b in zip(series.values, other.values, strict=True)
    ]
    middle = median(sums)
    return all(abs(value - middle) < _SAME_SAMPLES for value in sums)


def _courses(found: Sequence[Series], readings: Sequence[Reading]) -> Iterator[Course]:
    shifts = [shift_of(series.values) for series in found]
    of_all = corrected([series.values for series in found], [shift.p for shift in shifts])
    num_moving = sum(moves(series.values) for series in found)
    for series, shift, p in zip(found, shifts, of_all, strict=True):
        num_figures = num_moving if moves(series.values) else num_moving + 1
        can_show = num_figures * least_probability(len(series.runs)) <= ALPHA
        changed: tuple[str, ...] = ()
        if p <= ALPHA and shift.kind == "step":
            before, after = (readings[series.runs[at]] for at in (shift.before - 1, shift.before))
            changed = changes(before.environment, after.environment)
        yield Course(series, shift, p, can_show, changed)


def _what_would_do(readings: Sequence[Reading], left_out: Sequence[str]) -> str:
    """More runs, unless there are enough and what they lack is steadiness."""
    if len(readings) >= FEWEST and any(words.endswith("(unsteady)") for words in left_out):
        return "iterations of a case differ too much: more of them in the suite, no other work on these hosts"
    return "name more runs of the same suite"


def _left_out(
    names: Sequence[str] | Mapping[str, datetime], readings: Sequence[Reading], without: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    for name, reading, left_out in zip(names, readings, without, strict=True):
        for history in reading.histories:
            why = left_out.get(history.case.id, "") if history.outcomes else ""
            if not why and any(row.basis.startswith(DISTURBED) for row in reading.by_case.get(history.case.id, ())):
                why = "disturbed"
            if why:
                yield f"{history.case.id} of {name} ({why})"
