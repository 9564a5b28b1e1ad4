"""What holds for every benchmark that is found, so that a new one need not be taught it."""

import math
import re

import pytest

from clusterbench.benchmarks import Benchmark, benchmarks
from clusterbench.benchmarks._tool import ToolBenchmark
from clusterbench.cluster import Cluster
from clusterbench.discover import summary
from clusterbench.rows import DETAILS
from clusterbench.types import SAMPLES, Case, Observation, Place
from clusterbench.units import UNITS

PLACES = [
    Place(Cluster(1, 1, "cpu"), 1),
    Place(Cluster(1, 4, "cpu"), 1),
    Place(Cluster(2, 8, "cuda", gpu_name="NVIDIA H100 80GB HBM3"), 2),
]
NAMES = sorted(benchmarks())


def plain(name):
    """The benchmark as a suite gets it that says nothing more than its name."""
    return benchmarks()[name].from_options({})


def measured(name, place, seconds=0.25):
    """Each point that can be at ``place``, with an observation in which every iteration took so long."""
    kind = plain(name)
    for point in kind.points(place):
        world_size = kind.world_size(point, place)
        if kind.objection(point, place) is None and world_size <= place.world_size:
            case = Case(
                f"{name}/{kind.label(point)}",
                name,
                kind.version,
                point,
                place.device,
                place.num_nodes,
                world_size,
                3,
                1,
                60.0,
                layout=kind.layout(point),
            )
            worth = {kind.name: seconds if kind.better == "lower" else 1 / seconds for kind in kind.metrics}
            figures = {name: [value] * 3 for name, value in worth.items()}
            passes = {SAMPLES: [figures] * world_size} if isinstance(kind, ToolBenchmark) else {}
            yield case, Observation(case.id, case.hash, 0, 1, ("a",), [[seconds] * 3] * world_size, passes=passes)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_says_what_is_measured(name):
    assert summary(benchmarks()[name]).endswith(".")
    assert not summary(benchmarks()[name]).startswith(summary(Benchmark))


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_explained(name):
    for option in benchmarks()[name].options().values():
        assert len(option.help) > 10, option.name


@pytest.mark.parametrize("place", PLACES, ids=["1x1", "1x4", "2x8"])
@pytest.mark.parametrize("name", NAMES)
def test_points_are_finite_unique_flat_and_told_apart_by_their_label(name, place):
    kind = plain(name)
    points = list(kind.points(place))
    assert 0 < len(points) < 1000
    for point in points:
        assert all(isinstance(value, (str, int, float, bool, type(None))) for value in point.values()), point
        assert re.fullmatch(r"[^\s/]+", kind.label(point))
    assert len({(kind.label(point), kind.world_size(point, place)) for point in points}) == len(points)


@pytest.mark.parametrize("name", NAMES)
def test_units_are_known_and_metrics_explained(name):
    declared = benchmarks()[name].metrics
    assert declared
    assert len({metric.name for metric in declared}) == len(declared)
    for metric in declared:
        assert metric.unit in UNITS
        assert metric.meaning


@pytest.mark.parametrize("place", PLACES, ids=["1x1", "1x4", "2x8"])
@pytest.mark.parametrize("name", NAMES)
def test_every_derived_metric_is_declared_positive_and_summarised_in_order(name, place):
    kind = benchmarks()[name]
    declared = {metric.name: metric for metric in kind.metrics}
    for case, observation in measured(name, place):
        derived = list(kind.derive(case, observation, place))
        assert derived
        for metric in derived:
            assert metric.name in declared
            assert metric.unit == declared[metric.name].unit
            assert set(metric.detail) <= {*DETAILS}
            if metric.value is None:
                assert metric.basis, f"{metric.key} is empty and nobody says why"
                continue
            assert math.isfinite(metric.value)
            assert metric.value >= 0
            if metric.low is not None:
                assert metric.low <= metric.value <= metric.high


@pytest.mark.parametrize("name", NAMES)
def test_a_slower_case_never_looks_better(name):
    kind = benchmarks()[name]
    better = {metric.name: metric.better for metric in kind.metrics}
    fast = [list(kind.derive(*each, PLACES[1])) for each in measured(name, PLACES[1], 0.25)]
    slow = [list(kind.derive(*each, PLACES[1])) for each in measured(name, PLACES[1], 0.5)]
    for quick, late in zip(fast, slow, strict=True):
        for shorter, longer in zip(quick, late, strict=True):
            if shorter.value is None or shorter.value == longer.value:
                continue
            assert (shorter.value > longer.value) == (better[shorter.name] == "higher"), shorter.key


@pytest.mark.parametrize("name", NAMES)
def test_expectations_carry_a_unit_and_their_grounds(name):
    kind = plain(name)
    for place in PLACES:
        for point in kind.points(place):
            if kind.objection(point, place) is None:
                for key, expected in kind.predict(point, place).items():
                    assert expected.unit in UNITS, key
                    assert len(expected.basis) > 3, key
                    assert math.isfinite(expected.value)
