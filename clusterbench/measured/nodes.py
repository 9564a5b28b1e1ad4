"""Where each node runs a step by itself: the figures of each, and how far apart nodes are that compute the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterbench.cluster import Cluster
from clusterbench.expected.formulas import StepFormulas
from clusterbench.formulas.statistics import median
from clusterbench.layout import ParallelLayout
from clusterbench.measured.agreement import (
    DISPUTED,
    STATISTICS,
    OfEachStep,
    agreement_figure,
    apart_in_words,
    distances,
    limit_of,
    middle_of,
    told,
    updates_compared,
)
from clusterbench.measured.step import evidence_metrics, proof_metrics, step_metrics
from clusterbench.run_folder.attempts import History, host_of, iteration_times
from clusterbench.types import Agreement, Case, Metric, Observation
from clusterbench.words import few

NODE_STEP = "node_step"
"""The benchmark whose cases are one step on each node."""

BY_NODE = frozenset({"step_time", "tokens_per_s_per_rank", "mfu"})
"""Figures of a step that are told of each node."""

_FEWEST = 3
"""Nodes of which more than half can agree where one does not."""


def node_metrics(case: Case, formulas: StepFormulas, observation: Observation, cluster: Cluster) -> Iterator[Metric]:
    """Of each node its speed, the slowest first, and the proof of all: ``formulas`` are of the step inside one.

    Where one figure stands for a case, as in a table, it is the first.
    """
    size = formulas.job.layout.world_size
    alone = replace(case, num_nodes=1, world_size=size, expected={})
    nodes = [_part(observation, first, size) for first in range(0, len(observation.seconds), size)]
    for of_node in sorted(nodes, key=lambda node: -median(iteration_times(node))):
        for metric in step_metrics(alone, formulas, of_node, cluster):
            if metric.name in BY_NODE:
                yield metric._replace(detail={**metric.detail, "part": of_node.hosts[0]})
    yield from evidence_metrics(observation)
    yield from proof_metrics(observation)


def seconds_by_node(case: Case, observation: Observation) -> Observation:
    """The same with nodes in place of ranks: of each its host, and the seconds of its slowest rank in each step."""
    size = ParallelLayout.parse(str(case.point["layout"])).world_size
    firsts = range(0, len(observation.seconds), size)
    slowest = [[max(of) for of in zip(*observation.seconds[at : at + size], strict=True)] for at in firsts]
    return replace(observation, hosts=tuple(host_of(observation, at) for at in firsts), seconds=slowest)


def _part(observation: Observation, first: int, size: int) -> Observation:
    """What the ranks of one node saw."""

    def of_ranks(values: Sequence[Any]) -> Sequence[Any]:
        return values[first : first + size]

    return replace(
        observation,
        hosts=(host_of(observation, first),),
        seconds=of_ranks(observation.seconds),
        evidence=of_ranks(observation.evidence),
        passes={name: of_ranks(values) for name, values in observation.passes.items()},
        timing=of_ranks(observation.timing),
    )


def agreements_of_nodes(histories: Sequence[History]) -> Mapping[str, Agreement]:
    """Hash -> how far apart the nodes of a case are, which compute the same: wrong is one that most others refute."""
    found = {}
    for history in histories:
        compared = [each for seen in history.observations for each in _compared(history.case, seen)]
        wrong = next((why for _, why in compared if why), "")
        furthest: dict[str, Metric] = {}
        for metric, _ in compared:
            source = metric.detail["source"]
            furthest[source] = max(furthest.get(source, metric), metric, key=_off)
        found[history.case.hash] = Agreement(tuple(furthest.values()), wrong)
    return found


def _off(metric: Metric) -> float:
    """How far nodes are apart; where nobody says which is right farther than any."""
    return math.inf if metric.value is None else metric.value


def _apart(value: float, middle: float) -> float:
    if value == middle:
        return 0.0
    return abs(value - middle) / abs(middle) if middle else math.inf


def _compared(case: Case, observation: Observation) -> Iterator[tuple[Metric, str]]:
    """Of each statistic how far the furthest node is from the middle one, and what is wrong."""
    size = ParallelLayout.parse(str(case.point["layout"])).world_size
    firsts = range(0, len(observation.evidence), size)
    most = updates_compared(case.point)
    for statistic in STATISTICS:
        of_nodes = {first: statistic.numbers(observation.evidence[first], most) for first in firsts}
        if isinstance(statistic, OfEachStep) or len(of_nodes) < 2 or not all(of_nodes.values()):
            continue
        updates = observation.evidence[0].get("num_updates", 0.0)
        if statistic.is_last and updates > most:
            continue
        limit = limit_of(case.point, statistic)
        middle = {label: middle_of([numbers[label] for numbers in of_nodes.values()]) for label in of_nodes[0]}
        furthest = {
            first: max((off, label) for label, off in distances(numbers, middle).items())
            for first, numbers in of_nodes.items()
        }
        beyond = [first for first in firsts if not furthest[first][0] <= limit]
        worst = max(firsts, key=lambda first: furthest[first])
        off, label = furthest[worst]
        named = few([f"{told(of_nodes[at][label])} on {host_of(observation, at)}" for at in beyond or [worst]])
        said = (
            f"{statistic.words.format(label)} is {named}, and {told(middle[label])} on the middle one of "
            f"{len(of_nodes)} nodes"
        )
        if beyond and (len(of_nodes) < _FEWEST or 2 * len(beyond) >= len(of_nodes)):
            yield agreement_figure(statistic, None, limit, f"{DISPUTED}: {said}"), ""
        else:
            how = apart_in_words(middle[label])
            wrong = (
                f"{said}, which compute the same: {off:.2g} {how}, where {limit:g} is allowed in {case.point['dtype']}"
            )
            yield agreement_figure(statistic, off, limit, "at most; between nodes"), wrong if beyond else ""
