"""Closed forms of pipeline bubbles against each other and the Zero Bubble paper's table."""

from __future__ import annotations

import pytest

from clusterbench.formulas.pipeline import (
    bubble_fraction,
    bubble_over_ideal_time,
    microbatches_in_flight,
    zero_bubble_h1,
    zero_bubble_h2,
)

ZERO_BUBBLE_TIMES_MS = (18.522, 18.086, 9.337, 0.601)
"""Forward, input-gradient, weight-gradient and send time of 1.5B parameters: Qi et al. 2023, arXiv:2401.10241."""


def test_zero_bubble_rates_are_those_of_the_papers_table_5():
    assert zero_bubble_h1(8, 24, *ZERO_BUBBLE_TIMES_MS) == pytest.approx(0.1585, abs=5e-5)
    assert zero_bubble_h2(8, 24, *ZERO_BUBBLE_TIMES_MS) == pytest.approx(0.1083, abs=5e-5)


def test_with_equal_thirds_h1_idles_a_third_as_long_as_1f1b_and_h2_not_at_all():
    idle_over_ideal = 1 / (1 - zero_bubble_h1(8, 24, 1.0, 1.0, 1.0)) - 1
    assert idle_over_ideal == pytest.approx(bubble_over_ideal_time(8, 24) / 3)
    assert zero_bubble_h2(8, 24, 1.0, 1.0, 1.0) == 0


def test_weights_longer_than_what_they_fill_leave_no_negative_idle_time():
    assert zero_bubble_h2(4, 12, forward_s=1.0, inputs_s=1.0, weights_s=2.0) == 0


def test_the_two_denominators_differ_by_the_step_over_ideal_time():
    for p, m, v in [(4, 12, 1), (8, 8, 2), (1, 4, 1)]:
        assert bubble_over_ideal_time(p, m, v) == pytest.approx(bubble_fraction(p, m, v) * (1 + (p - 1) / (v * m)))


def test_one_stage_has_no_bubble():
    assert bubble_fraction(1, 4) == bubble_over_ideal_time(1, 4) == 0


def test_1f1b_holds_as_many_microbatches_as_stages_follow_and_its_own():
    # arXiv:2104.04473, section 2.2.1: at most p microbatches are in flight, where GPipe has all m.
    assert [microbatches_in_flight(4, 12, stage) for stage in range(4)] == [4, 3, 2, 1]


def test_interleaving_shortens_the_bubble_by_the_number_of_chunks():
    # arXiv:2104.04473, section 2.2.2: (p - 1) / (v m) of the ideal time.
    assert bubble_over_ideal_time(8, 32) == 7 / 32
    assert bubble_over_ideal_time(8, 32, chunks=4) == 7 / 128
    assert bubble_fraction(8, 32, chunks=4) == 7 / (128 + 7)


def test_no_stage_holds_more_microbatches_than_there_are():
    assert microbatches_in_flight(num_stages=8, num_microbatches=4, stage=0) == 4
