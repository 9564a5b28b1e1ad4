"""What is called a step or a drift: planted ones are found, and noise is silent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clusterbench.cases.series import ALPHA, corrected, holm, least_probability, shift_of, slope_interval, theil_sen

RUNS, SERIES, CASES = 16, 400, 5


def noise(draw: np.random.Generator, runs: int = RUNS) -> list[float]:
    """Of 2 %, with heavy tails."""
    return [math.exp(0.02 * value) for value in draw.standard_t(3, runs)]


def test_steady_noise_is_called_a_step_or_a_drift_in_at_most_5_percent_of_the_suites() -> None:
    draw = np.random.default_rng(17)
    alarms = sum(min(holm([shift_of(noise(draw)).p for _ in range(CASES)])) <= ALPHA for _ in range(SERIES))
    share = alarms / SERIES
    print(f"false alarms on steady noise: {share:.1%} of {SERIES} series of {RUNS} runs with {CASES} cases")
    assert share <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / SERIES)


def test_planted_steps_are_found_where_they_are() -> None:
    draw = np.random.default_rng(18)
    found = [
        shift_of([value * (1.1 if run >= 8 else 1.0) for run, value in enumerate(noise(draw))]) for _ in range(100)
    ]
    right = [each for each in found if CASES * each.p <= ALPHA and each.kind == "step" and abs(each.before - 8) <= 1]
    print(f"steps of 10 % found: {len(right)} of 100")
    assert len(right) >= 75  # 82: noise with such tails hides some, or has them taken for a drift
    assert np.median([each.log for each in right]) == pytest.approx(math.log(1.1), abs=0.015)


def test_planted_drifts_are_found() -> None:
    draw = np.random.default_rng(19)
    found = [shift_of([value * 1.015**run for run, value in enumerate(noise(draw))]) for _ in range(100)]
    right = [each for each in found if CASES * each.p <= ALPHA and each.kind == "drift"]
    print(f"drifts of 1.5 % a run found: {len(right)} of 100")
    assert len(right) >= 85
    assert np.median([each.log for each in right]) == pytest.approx(15 * math.log(1.015), abs=0.03)


def test_a_single_outlier_is_neither() -> None:
    values = noise(np.random.default_rng(20))
    assert shift_of([*values[:7], 3.0, *values[8:]]).p > ALPHA


def test_what_never_changes_is_steady() -> None:
    assert shift_of([7.0] * 12).p == 1.0


def test_what_never_changes_takes_nothing_from_what_does() -> None:
    step = [1.00, 1.01, 1.02, 0.99, 1.005, 0.995, 1.20, 1.21, 1.19, 1.22, 1.18, 1.205]
    every = [step, *[[5.0] * 12] * 20]
    of_all = corrected(every, [shift_of(values).p for values in every])
    assert of_all == [shift_of(step).p, *[1.0] * 20]
    assert of_all[0] < ALPHA < holm([shift_of(values).p for values in every])[0]


def test_the_clearest_step_of_six_runs_is_as_likely_as_counting_says() -> None:
    """Three low and three high, or the mirror image, in 72 of 720 orders; twice that, for two tests."""
    assert least_probability(6) == pytest.approx(2 * 72 / 720)


def test_the_slope_is_that_of_the_other_runs() -> None:
    assert theil_sen([0.0, 1.0, 2.0, 3.0, 50.0, 5.0, 6.0]) == 1.0


def test_the_interval_of_the_slope_holds_the_true_one_as_often_as_it_says() -> None:
    draw = np.random.default_rng(21)
    hits = 0
    for _ in range(SERIES):
        low, high = slope_interval([math.log(value) + 0.01 * run for run, value in enumerate(noise(draw))], 0.05)
        hits += low <= 0.01 <= high
    print(f"intervals of 95 % that hold the slope: {hits / SERIES:.1%}")
    assert 0.95 - 2 * math.sqrt(0.05 * 0.95 / SERIES) <= hits / SERIES <= 0.99


def test_an_interval_surer_than_all_pairs_can_say_has_no_bounds() -> None:
    assert slope_interval([1.0, 2.0, 3.0, 4.0, 5.0], 1e-6) == (-math.inf, math.inf)


def test_too_few_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 5 values above 0"):
        shift_of([1.0, 1.0, 1.0, 1.0])
