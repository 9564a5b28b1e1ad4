"""Statistics on samples whose answer is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbench.formulas.statistics import (
    Summary,
    coefficient_of_variation,
    jitter,
    percentile,
    ratio_of_medians,
    summarise,
)

samples = st.lists(st.floats(0.1, 1e3), min_size=1, max_size=60)


def test_percentiles_are_by_nearest_rank():
    # ceil(p n): of 20 samples the 95th percentile is the 19th, of 21 the 20th.
    assert percentile(range(1, 21), 0.95) == 19
    assert percentile(range(1, 22), 0.95) == 20
    assert percentile([7.0], 0.05) == 7.0


def test_rounding_of_p_times_n_picks_no_neighbour():
    # 0.07 * 100 is 7.000000000000001 in binary, and its ceiling would be 8.
    assert percentile(range(1, 101), 0.07) == 7


def test_p99_is_refused_under_100_samples():
    with pytest.raises(ValueError, match="p99 needs at least 100 samples; there are 99"):
        percentile(range(99), 0.99)
    assert percentile(range(1, 101), 0.99) == 99
    with pytest.raises(ValueError, match=r"p99\.9 needs at least 1000 samples"):
        percentile(range(999), 0.999)


@pytest.mark.parametrize("p", [0, 1, 95, -0.1])
def test_a_percentile_outside_0_to_1_is_refused(p):
    with pytest.raises(ValueError, match=r"write 0\.95 for the 95th"):
        percentile([1.0], p)


@given(samples)
def test_low_value_and_high_are_in_order(values):
    summary = summarise(values)
    assert min(values) <= summary.low <= summary.value <= summary.high <= max(values)
    assert summary.n == len(values)


def test_a_summary_is_the_median_and_the_5th_and_95th_percentile():
    assert summarise([float(x) for x in range(1, 101)]) == Summary(value=50.5, low=5.0, high=95.0, n=100)


def test_spread_of_equal_samples_is_zero():
    assert coefficient_of_variation([3.0, 3.0]) == 0
    assert coefficient_of_variation([3.0]) == 0
    assert jitter([3.0, 3.0, 3.0]) == 0


def test_a_spread_is_that_of_a_sample():
    # NIST, Statistical Reference Datasets, NumAcc1: certified mean 10000002 and sample standard deviation 1, exactly.
    assert coefficient_of_variation([10_000_001.0, 10_000_003.0, 10_000_002.0]) == 1 / 10_000_002


def test_no_samples_have_no_statistics():
    with pytest.raises(ValueError, match="a median needs at least 1 samples; there are 0"):
        summarise([])


def test_a_ratios_interval_is_the_same_every_time_and_holds_the_truth():
    noise = random.Random(1)
    slow = [2.0 + noise.gauss(0, 0.1) for _ in range(30)]
    fast = [1.0 + noise.gauss(0, 0.05) for _ in range(30)]
    ratio = ratio_of_medians(slow, fast)
    assert ratio == ratio_of_medians(slow, fast)
    assert ratio.low < ratio.value < ratio.high
    assert ratio.low < 2.0 < ratio.high
    assert ratio.high - ratio.low < 0.3


def test_the_same_code_against_itself_holds_one():
    noise = random.Random(2)
    first, second = ([1.0 + noise.gauss(0, 0.05) for _ in range(20)] for _ in range(2))
    ratio = ratio_of_medians(first, second)
    assert ratio.low <= 1.0 <= ratio.high


def test_a_ratio_over_zero_is_refused():
    with pytest.raises(ValueError, match=r"the denominator has a sample of 0\.0"):
        ratio_of_medians([1.0], [0.0, 1.0])
