"""Pipeline bubbles against Megatron's forms and the Zero Bubble paper's table."""

from __future__ import annotations

import pytest

from clusterbench.formulas.pipeline import (
    bubble_fraction,
    bubble_over_ideal_time,
    microbatches_in_flight,
    step_time_1f1b,
)

# Stages, microbatches, profiled forward, input-gradient, weight-gradient and send time in ms, and the bubble rate of
# 1F1B computed from them: Qi et al. 2023, arXiv:2401.10241, table 5.
ZERO_BUBBLE = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646),
]


@pytest.mark.parametrize(("p", "m", "forward", "inputs", "weights", "send", "rate"), ZERO_BUBBLE)
def test_1f1b_played_through_is_the_published_bubble_rate(p, m, forward, inputs, weights, send, rate):
    step = step_time_1f1b(p, m, forward, inputs + weights, send)
    assert 1 - m * (forward + inputs + weights) / step == pytest.approx(rate, abs=5e-5)


@pytest.mark.parametrize(("p", "m", "forward", "inputs", "weights", "send", "rate"), ZERO_BUBBLE)
def test_the_closed_form_is_the_published_rate_less_what_sending_costs(p, m, forward, inputs, weights, send, rate):
    assert 0 < rate - bubble_fraction(p, m) < 0.025


@pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 1), (4, 12), (8, 24), (4, 3)])
def test_played_through_with_free_sending_is_the_closed_form(p, m):
    step = step_time_1f1b(p, m, forward_s=1.0, backward_s=2.0)
    assert 1 - 3.0 * m / step == pytest.approx(bubble_fraction(p, m))


def test_the_two_denominators_differ_by_the_step_over_ideal_time():
    for p, m, v in [(4, 12, 1), (8, 8, 2), (1, 4, 1)]:
        assert bubble_over_ideal_time(p, m, v) == pytest.approx(bubble_fraction(p, m, v) * (1 + (p - 1) / (v * m)))


def test_one_stage_has_no_bubble():
    assert bubble_fraction(1, 4) == bubble_over_ideal_time(1, 4) == 0


def test_no_stage_holds_more_microbatches_than_there_are():
    assert microbatches_in_flight(num_stages=8, num_microbatches=4, stage=0) == 4
