"""The figures that a case has in both runs, and which of them come from the same samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.cluster import SHARES_OF_PEAK, Cluster, have_other_peaks
from clusterbench.compare.repeats import Change, Repeats
from clusterbench.derive.figures import repeat_metrics
from clusterbench.formulas.statistics import median
from clusterbench.measured.disturbed import undisturbed
from clusterbench.measured.speed import why_no_speed
from clusterbench.recorded import Recorded
from clusterbench.run_folder.attempts import History, iteration_times
from clusterbench.types import SAMPLES, Case, Metric, MetricKind, split_key

TIME = MetricKind("time of an iteration", "s", "lower", "from the slowest rank")

How = Literal["repeats", "exact", "once"]
"""``repeats``: a sample a repeat. ``exact``: counted, not timed. ``once``: timed in one pass of a run; not judged."""

_ALL, _BUFFERS = "peak_memory[category=total]", "peak_memory[category=communication]"
"""Of buffers of collectives one more is alive where a thread of Gloo lets go of the last one a moment later."""

LARGEST = 700.0
"""A logarithm whose exponential is still a float: that of something over nothing, which has no ratio."""

_SAME_SAMPLES = 1e-3  # programs print four digits; two figures of their own differ by more than this in some repeat


@dataclass(frozen=True)
class Figure:
    """One metric of one case in both runs, a value a repeat.

    ``limit`` is what the metric may not exceed, where the plan has a limit: a deviation below it is rounding, and what
    is beyond it is judged as a share of it. ``base_runs`` is of how many runs the values of base are. ``whole`` is what
    the metric is a part of, where only a change of that counts.
    """

    case: str
    key: str
    kind: MetricKind
    how: How
    base: tuple[float, ...]
    new: tuple[float, ...]
    limit: float | None = None
    iterations: tuple[Repeats, Repeats] | None = None
    base_runs: int = 1
    whole: float | None = None

    @cached_property
    def logarithms(self) -> tuple[Repeats, Repeats]:
        """Of base and new, larger where worse; with what iterations say of their noise where it is known."""
        if self.iterations:
            return self.iterations
        base = replace(self._logarithms(self.base), runs=min(self.base_runs, len(self.base)))
        return base, self._logarithms(self.new)

    def _logarithms(self, values: Sequence[float]) -> Repeats:
        sign = -1 if self.kind.better == "higher" else 1
        return Repeats.of_values([sign * math.log(value) for value in values])

    @cached_property
    def exact_change(self) -> Change:
        """From the most favourable pair of values to the least; of a deviation beyond its limit, in shares of that."""
        low, high = sorted((self._worsened(self.base, self.new), -self._worsened(self.new, self.base)))
        unlike = (high - low) / 2
        return Change(np.array(high - unlike), np.array(unlike), np.array(math.inf))

    def _worsened(self, base: Sequence[float], new: Sequence[float]) -> float:
        """By how much at most ``new`` is worse."""
        if self.kind.better == "higher":
            base, new = new, base
        best, worst = min(base), max(new)
        if self.limit:
            return (max(worst, self.limit) - max(best, self.limit)) / self.limit
        if self.whole:
            return (worst - best) / self.whole
        if best == worst:
            return 0.0
        if best <= 0 or worst <= 0:
            return LARGEST if worst > best else -LARGEST
        return math.log(worst / best)


class Found(NamedTuple):
    """What there is to compare of a case.

    Attributes
    ----------
    figures
        What both runs know of it.
    lacking
        The keys that one run alone has.
    is_void
        Whether it is timed, and one run has no time of it that says anything: each repeat was disturbed, ranks shared
        GPUs in that run alone, or base lost its record.
    shares
        Metrics that are left out, because they are a share of another peak in each run.
    """

    figures: list[Figure]
    lacking: list[str]
    is_void: bool
    shares: tuple[str, ...] = ()


def figures_of(base: History, new: History, clusters: tuple[Cluster, Cluster]) -> Found:
    """What both runs know of a case; times are those of repeats that nothing disturbed."""
    if not base.observations or not new.observations:
        return Found([], [], is_void=base.status == "ok" and not base.observations and bool(new.observations))
    benchmark = benchmarks().get(base.case.benchmark)
    kinds = {kind.name: kind for kind in benchmark.metrics} if benchmark else {}
    first, second = (_values(history, cluster, kinds) for history, cluster in zip((base, new), clusters, strict=True))
    time = _time(base, new)
    found = [
        _figure(base, new, kinds[split_key(key)[0]], first[key], second[key], time) for key in first if key in second
    ]
    found = _in_shares_of_all(found)
    has_time = _has_time(benchmark, base.case, clusters)
    if time is not None:
        found = _with_time(found, time, has_time)
    lacking = [*(key for key in first if key not in second), *(key for key in second if key not in first)]
    has_other_peak = have_other_peaks(*(cluster.gpu_name for cluster in clusters))
    in_one_alone = _has_time(benchmark, base.case, clusters[:1]) != _has_time(benchmark, base.case, clusters[1:])
    return _without_shares(Found(found, lacking, in_one_alone or (has_time and time is None)), has_other_peak)


def _without_shares(found: Found, has_other_peak: bool) -> Found:
    shares = dict.fromkeys(figure.kind.name for figure in found.figures if figure.kind.name in SHARES_OF_PEAK)
    if not has_other_peak or not shares:
        return found
    figures = [figure for figure in found.figures if figure.kind.name not in SHARES_OF_PEAK]
    return found._replace(figures=figures, shares=tuple(shares))


def _in_shares_of_all(found: list[Figure]) -> list[Figure]:
    """With buffers of collectives as a share of all memory of base."""
    whole = next((max(figure.base) for figure in found if figure.key == _ALL), None)
    return [replace(figure, whole=whole) if figure.key == _BUFFERS else figure for figure in found]


def _with_time(found: list[Figure], time: Figure, has_time: bool) -> list[Figure]:
    """With the noise of iterations in the figure that they make, or with their time where none says it."""
    timed = next((figure for figure in found if figure.how == "repeats" and _are_of_same_samples(figure, time)), None)
    if timed is not None:
        return [replace(figure, iterations=time.iterations) if figure is timed else figure for figure in found]
    if has_time and not any(figure.how == "repeats" for figure in found):
        return [time, *found]  # of a program with figures of its own these are compared, and not how long it ran
    return found


def figures_against(
    recorded: Mapping[str, Recorded], base_runs: int, new: History, cluster: Cluster, has_other_peak: bool = False
) -> Found:
    """What a case has now and had in a baseline of so many runs, a sample of that as a repeat.

    A figure that is taken in one pass of a run is judged where the baseline has it of several runs.
    """
    if not new.observations:
        return Found([], [], is_void=False)
    benchmark = benchmarks().get(new.case.benchmark)
    kinds = {kind.name: kind for kind in benchmark.metrics} if benchmark else {}
    now = _values(new, cluster, kinds)
    known = {key: of for key, of in recorded.items() if key in now or _is_judged(kinds.get(split_key(key)[0]))}
    found = _in_shares_of_all(
        [_against(known[key], base_runs, new, kinds[split_key(key)[0]], now[key]) for key in known if key in now]
    )
    lacking = [*(key for key in known if key not in now), *(key for key in now if key not in known)]
    is_timed = benchmark is None or benchmark.is_timed
    is_void = is_timed and not (_has_time(benchmark, new.case, [cluster]) and undisturbed(new.observations))
    return _without_shares(Found(found, lacking, is_void), has_other_peak)


def _is_judged(kind: MetricKind | None) -> bool:
    return kind is not None and kind.better != "neither"


def _against(recorded: Recorded, base_runs: int, new: History, kind: MetricKind, metrics: Sequence[Metric]) -> Figure:
    limit = _limit(new, kind, metrics[0].key)
    of_new = tuple(float(metric.value or 0.0) for metric in metrics)
    figure = Figure(new.case.id, metrics[0].key, kind, "exact", recorded.samples, of_new, limit, base_runs=base_runs)
    if kind.exact or limit:
        return figure
    is_of_time = metrics[0].iterations == len(new.observations[0].seconds[0])
    if not _is_of_each(of_new, new) or not (is_of_time or len(recorded.samples) > 1):
        return replace(figure, how="once")
    of_runs = recorded.of_each_run()
    base_runs = len(of_runs) if recorded.by_run else base_runs
    return _with_ratio(replace(figure, base=tuple(chain.from_iterable(of_runs)), base_runs=base_runs))


def _with_ratio(figure: Figure) -> Figure:
    """Judged by repeats where each has a ratio to the others; a rate that fell to nothing as what is counted is."""
    if min(*figure.base, *figure.new) > 0:
        return replace(figure, how="repeats")
    has_fallen = figure.kind.better == "higher" and min(figure.base) > 0
    return figure if has_fallen else replace(figure, how="once")


def _is_of_each(values: Sequence[float], history: History) -> bool:
    """Whether each repeat has such a figure, or each that nothing disturbed."""
    return len(values) in (len(history.observations), len(undisturbed(history.observations)))


def _limit(new: History, kind: MetricKind, key: str) -> float | None:
    """What the plan allows a deviation to be."""
    planned = new.case.expected.get(key)
    is_deviation = kind.unit == "1" and kind.better == "lower"
    return planned.value if planned and is_deviation and planned.basis.startswith("at most") else None


def _has_time(benchmark: type[Benchmark] | None, case: Case, clusters: Sequence[Cluster]) -> bool:
    is_timed = benchmark is None or benchmark.is_timed
    return is_timed and not any(why_no_speed(case, cluster) for cluster in clusters)


def independent(found: Sequence[Figure]) -> list[list[Figure]]:
    """Figures judged by repeats, together where one is a multiple or the inverse of the other, sample by sample."""
    groups: list[list[Figure]] = []
    for figure in found:
        if figure.how == "repeats":
            group = next((group for group in groups if _are_of_same_samples(figure, group[0])), None)
            if group is None:
                groups.append([figure])
            else:
                group.append(figure)
    return groups


def _are_of_same_samples(figure: Figure, other: Figure) -> bool:
    mine, others = (np.concatenate([run.logarithms for run in each.logarithms], axis=-1) for each in (figure, other))
    return len(mine) == len(others) and bool(np.ptp(mine - others) < _SAME_SAMPLES)


def _values(history: History, cluster: Cluster, kinds: Mapping[str, MetricKind]) -> dict[str, list[Metric]]:
    """By key, a metric with a better side and a finite value, of each repeat that has it."""
    values: dict[str, list[Metric]] = {}
    for metrics in repeat_metrics(history, cluster):
        for metric in metrics:
            kind = kinds.get(metric.name)
            if kind and kind.better != "neither" and metric.value is not None and math.isfinite(metric.value):
                values.setdefault(metric.key, []).append(metric)
    return values


def _figure(
    base: History,
    new: History,
    kind: MetricKind,
    first: Sequence[Metric],
    second: Sequence[Metric],
    time: Figure | None,
) -> Figure:
    key = first[0].key
    limit = _limit(new, kind, key)
    of_base, of_new = (tuple(float(metric.value or 0.0) for metric in run) for run in (first, second))
    figure = Figure(base.case.id, key, kind, "exact", of_base, of_new, limit)
    if kind.exact or limit:
        return figure
    is_complete = _is_of_each(of_base, base) and _is_of_each(of_new, new)
    if not is_complete:
        return replace(figure, how="once")
    figure = _with_ratio(figure)
    if len(of_base) > 1 or len(of_new) > 1 or any(key in rank for rank in base.observations[0].passes.get(SAMPLES, ())):
        return figure
    # Of a single repeat: a rate or the time itself, and not what one pass took.
    is_of_all = figure.how == "repeats" and first[0].iterations == len(base.observations[0].seconds[0])
    of_time = is_of_all and time is not None and _are_of_same_samples(figure, time)
    return figure if of_time else replace(figure, how="once")


def _time(base: History, new: History) -> Figure | None:
    """None where each repeat of one of them was disturbed."""
    runs = [
        [iteration_times(observation) for observation in undisturbed(history.observations)] for history in (base, new)
    ]
    if not all(runs):
        return None
    medians = [tuple(median(times) for times in run) for run in runs]
    noise = tuple(_of_iterations(run) for run in runs)
    return Figure(base.case.id, TIME.name, TIME, "repeats", medians[0], medians[1], None, (noise[0], noise[1]))


def _of_iterations(run: Sequence[Sequence[float]]) -> Repeats:
    """Of repeats that need not have equally many iterations."""
    repeats = [Repeats.of_iterations(np.log([times])) for times in run]
    logarithms = np.concatenate([repeat.logarithms for repeat in repeats])
    floor, scatter = np.mean([(repeat.floor, repeat.scatter) for repeat in repeats], axis=0)
    return Repeats(logarithms, floor, scatter)
