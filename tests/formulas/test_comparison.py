"""Comparisons against planted differences and against none."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest

from clusterbench.formulas.comparison import Comparison, _ways, compare_samples


def noisy(generator: random.Random, median: float, cv: float, count: int) -> list[float]:
    return [median * math.exp(generator.gauss(0, cv)) for _ in range(count)]


def test_orders_are_counted_as_enumeration_counts_them() -> None:
    counted = [0] * (4 * 5 + 1)
    for chosen in combinations(range(9), 4):
        counted[sum(place - rank for rank, place in enumerate(chosen))] += 1
    assert list(_ways(4, 5)) == counted


@pytest.mark.parametrize(("base", "new"), [(5, 5), (10, 10), (20, 20), (60, 60), (5, 30)])
def test_where_nothing_differs_at_most_six_in_a_hundred_alarm(base: int, new: int) -> None:
    generator = random.Random(base * 100 + new)
    alarms = sum(
        compare_samples(noisy(generator, 1.0, 0.02, base), noisy(generator, 1.0, 0.02, new)).differs
        for _ in range(2000)
    )
    assert alarms <= 0.06 * 2000


def test_a_slowdown_of_five_percent_is_found_in_noise_of_two() -> None:
    generator = random.Random(1)
    comparisons = [
        compare_samples(noisy(generator, 1.0, 0.02, 10), noisy(generator, 1.05, 0.02, 10)) for _ in range(500)
    ]
    assert sum(comparison.differs and comparison.ratio > 1 for comparison in comparisons) >= 0.95 * 500


def test_the_interval_holds_the_true_ratio() -> None:
    generator = random.Random(2)
    comparisons = [compare_samples(noisy(generator, 2.0, 0.1, 12), noisy(generator, 3.0, 0.1, 12)) for _ in range(1000)]
    assert (
        sum(
            comparison.low <= 1.5 <= comparison.high for comparison in comparisons if comparison.low and comparison.high
        )
        >= 0.94 * 1000
    )


def test_too_few_samples_have_no_interval() -> None:
    few = compare_samples([1.0, 1.0, 1.0], [9.0, 9.0, 9.0])
    assert few.ratio == pytest.approx(9.0)
    assert (few.low, few.high, few.differs, few.smallest) == (None, None, False, None)
    assert compare_samples([1.0] * 4, [9.0] * 4).differs


def test_the_smallest_difference_is_half_of_the_intervals_width() -> None:
    assert Comparison(1.0, 0.8, 1.25, 5, 5).smallest == pytest.approx(0.25)
    assert Comparison(2.0, 1.6, 2.5, 5, 5).smallest == pytest.approx(0.25)


def test_the_smallest_difference_shrinks_with_samples() -> None:
    generator = random.Random(3)
    few, many = (
        compare_samples(noisy(generator, 1.0, 0.05, count), noisy(generator, 1.0, 0.05, count)) for count in (6, 60)
    )
    assert few.smallest is not None
    assert many.smallest is not None
    assert many.smallest < few.smallest / 2


def test_many_samples_take_no_time_and_no_memory() -> None:
    generator = random.Random(4)
    comparison = compare_samples(noisy(generator, 1.0, 0.02, 100_000), noisy(generator, 1.1, 0.02, 100_000))
    assert comparison.ratio == pytest.approx(1.1, rel=2e-3)
    assert comparison.num_base == 500


def test_samples_that_are_no_times_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a comparison needs samples above 0, not -1\.0"):
        compare_samples([1.0, -1.0], [1.0])
