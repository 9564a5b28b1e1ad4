"""The metrics of a case, from records that are whole."""

from __future__ import annotations

from collections.abc import Iterator

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.cluster import Cluster
from clusterbench.errors import ClusterbenchError
from clusterbench.formulas.statistics import median
from clusterbench.measured.bounds import BEYOND, without_impossible
from clusterbench.measured.disturbed import without_disturbed
from clusterbench.measured.speed import without_speed
from clusterbench.run_folder.attempts import History, iteration_times
from clusterbench.run_folder.records import MOST
from clusterbench.types import Metric, Observation, Place

_FASTER = 1.05
"""Times as fast as the median of all: what a repeat has to be before it is held against bounds by itself."""


def with_figures(history: History, cluster: Cluster, problems: list[str]) -> tuple[History, list[Metric]]:
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
    return with_figures(sound, cluster, problems)


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
        if len(history.observations) > 1:
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
