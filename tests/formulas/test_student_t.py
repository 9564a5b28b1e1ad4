"""Student's t against printed tables and against its own distribution."""

from __future__ import annotations

import math
import random

import pytest

from clusterbench.formulas.student_t import quantile

# Abramowitz and Stegun 1964, table 26.10: t for A(t|v) = 0.5, 0.9, 0.95, 0.98, 0.99, 0.999. With two degrees the closed
# form below gives 31.5991, which old tables print as 31.598.
TABLE = {
    1: (1.000, 6.314, 12.706, 31.821, 63.657, 636.619),
    2: (0.816, 2.920, 4.303, 6.965, 9.925, 31.599),
    3: (0.765, 2.353, 3.182, 4.541, 5.841, 12.924),
    4: (0.741, 2.132, 2.776, 3.747, 4.604, 8.610),
    5: (0.727, 2.015, 2.571, 3.365, 4.032, 6.869),
    10: (0.700, 1.812, 2.228, 2.764, 3.169, 4.587),
    20: (0.687, 1.725, 2.086, 2.528, 2.845, 3.850),
    30: (0.683, 1.697, 2.042, 2.457, 2.750, 3.646),
    120: (0.677, 1.658, 1.980, 2.358, 2.617, 3.373),
}


@pytest.mark.parametrize("degrees", TABLE)
def test_quantiles_are_those_of_the_printed_table(degrees: int) -> None:
    tails = [(1 - central) / 2 for central in (0.5, 0.9, 0.95, 0.98, 0.99, 0.999)]
    assert [quantile(tail, degrees) for tail in tails] == pytest.approx(TABLE[degrees], abs=6e-4, rel=2e-5)


def test_two_degrees_have_a_closed_form_far_into_the_tail() -> None:
    for tail in (1e-3, 1e-6, 1e-8):
        central = 1 - 2 * tail
        assert quantile(tail, 2) == pytest.approx(central * math.sqrt(2 / (1 - central**2)), rel=1e-5)


def test_the_share_beyond_a_quantile_is_the_tail() -> None:
    draw = random.Random(1)
    ratios = [
        draw.gauss(0, 1) / math.sqrt(math.fsum(draw.gauss(0, 1) ** 2 for _ in range(6)) / 6) for _ in range(20_000)
    ]
    assert sum(ratio > quantile(0.05, 6) for ratio in ratios) == pytest.approx(1000, abs=120)


@pytest.mark.parametrize(("tail", "degrees"), [(0.0, 3), (0.6, 3), (0.1, 0)])
def test_what_has_no_quantile_is_refused(tail: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="a quantile of Student's t needs"):
        quantile(tail, degrees)
