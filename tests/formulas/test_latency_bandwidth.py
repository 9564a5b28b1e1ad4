"""The fit of latency and bandwidth on planted lines, switches, noise and outliers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from clusterbench.formulas.latency_bandwidth import fit, size_at_half_peak

SIZES = [8 * 2**number for number in range(28)]  # 8 B to 1 GiB


def one_line(size: float) -> float:
    return 12e-6 + size / 5e9


def two_lines(size: float) -> float:
    return 10e-6 + size / 1e9 if size <= 65_536 else 40e-6 + size / 20e9


def three_lines(size: float) -> float:
    if size <= 4096:
        return 5e-6 + size / 0.5e9
    return 20e-6 + size / 5e9 if size <= 2**21 else 300e-6 + size / 40e9


def sweep(time_of: Callable[[float], float], noise: float, seed: int) -> tuple[tuple[float, float], ...]:
    draw = random.Random(seed)
    return tuple((size, time_of(size) * math.exp(draw.gauss(0, noise))) for size in SIZES)


@pytest.mark.parametrize(
    ("time_of", "planted"),
    [
        (one_line, [(12e-6, 5e9)]),
        (two_lines, [(10e-6, 1e9), (40e-6, 20e9)]),
        (three_lines, [(5e-6, 0.5e9), (20e-6, 5e9), (300e-6, 40e9)]),
    ],
)
def test_planted_lines_are_found_exactly_without_noise(
    time_of: Callable[[float], float], planted: list[tuple[float, float]]
) -> None:
    segments = fit(sweep(time_of, 0.0, 0))
    assert [segment.alpha_s for segment in segments] == pytest.approx([alpha for alpha, _ in planted])
    assert [segment.bytes_per_s for segment in segments] == pytest.approx([beta for _, beta in planted])
    assert max(segment.error for segment in segments) < 1e-9


def test_segments_begin_where_the_switch_is() -> None:
    first, second = fit(sweep(two_lines, 0.0, 0))
    assert (first.smallest, first.largest) == (8, 65_536)
    assert (second.smallest, second.largest) == (131_072, 2**30)
    assert first.num_points + second.num_points == len(SIZES)


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
@pytest.mark.parametrize(("time_of", "number"), [(one_line, 1), (two_lines, 2), (three_lines, 3)])
def test_noise_neither_makes_nor_hides_a_switch(time_of: Callable[[float], float], number: int, noise: float) -> None:
    numbers = [len(fit(sweep(time_of, noise, seed))) for seed in range(100)]
    assert numbers.count(number) >= 97


def test_alpha_and_beta_are_as_near_as_the_noise_allows() -> None:
    for seed in range(50):
        line = fit(sweep(one_line, 0.03, seed), most_segments=1)[0]
        assert line.alpha_s == pytest.approx(12e-6, rel=0.05)
        assert line.bytes_per_s == pytest.approx(5e9, rel=0.05)
        assert 0.005 < line.error < 0.05


def test_points_far_off_change_nothing() -> None:
    """Three of 28 are three or ten times too slow, or too fast: what a neighbour's job or a page fault does."""
    right = 0
    for seed in range(100):
        draw = random.Random(seed)
        points = list(sweep(two_lines, 0.02, seed))
        for index in draw.sample(range(len(points)), 3):
            size, time_s = points[index]
            points[index] = size, time_s * draw.choice([3.0, 10.0, 0.4])
        segments = fit(tuple(points))
        if len(segments) == 2:
            right += abs(segments[0].alpha_s / 10e-6 - 1) < 0.1 and abs((segments[1].bytes_per_s or 0) / 20e9 - 1) < 0.1
    assert right >= 95


def test_the_smallest_size_counts_as_much_as_the_largest() -> None:
    """Least squares of seconds would put alpha anywhere: 1 % of the time of 1 GiB is 2 ms."""
    (line,) = fit(sweep(one_line, 0.01, 1))
    assert line.alpha_s == pytest.approx(12e-6, rel=0.02)


def test_times_that_vary_widely_do_not_pull_the_line_to_the_short_ones() -> None:
    alphas = [fit(sweep(lambda size: 12e-6, 0.7, seed), most_segments=1)[0].alpha_s for seed in range(200)]
    assert sorted(alphas)[100] == pytest.approx(12e-6, rel=0.1)


def test_what_does_not_grow_has_no_bandwidth() -> None:
    (line,) = fit(tuple((size, 7e-6) for size in SIZES[:8]))
    assert line.bytes_per_s is None
    assert line.time_s(2**40) == pytest.approx(7e-6)


def test_latency_is_never_negative() -> None:
    (line,) = fit(tuple((size, size**1.2 * 1e-9) for size in (1e6, 2e6, 4e6, 8e6)))
    assert line.alpha_s == 0.0
    assert line.bytes_per_s is not None


def test_of_several_points_of_one_size_the_median_counts() -> None:
    once = [(float(size), 1e-5 + size / 1e9) for size in (8, 32, 128, 512, 2048)]
    twice = [(size, time_s * share) for size, time_s in once for share in (0.5, 1.0, 8.0)]
    assert fit(tuple(twice)) == fit(tuple(once))
    assert fit(tuple((8.0, time_s) for _, time_s in once)) == ()


def test_fewer_than_four_points_are_no_line() -> None:
    assert fit(((8, 1e-6), (16, 1e-6), (32, 1e-6))) == ()


def test_hundreds_of_sizes_are_one_sweep() -> None:
    points = tuple((8 * 1.03**number, two_lines(8 * 1.03**number)) for number in range(600))
    first, second = fit(points)
    assert first.alpha_s == pytest.approx(10e-6, rel=0.05)
    assert second.bytes_per_s == pytest.approx(20e9, rel=0.01)
    assert first.largest <= 65_536 < second.smallest


def test_half_of_the_peak_of_a_straight_line_is_at_alpha_times_beta() -> None:
    bandwidths = [size / one_line(size) for size in SIZES]
    assert size_at_half_peak(SIZES, bandwidths) == pytest.approx(12e-6 * 5e9, rel=0.05)


def test_a_sweep_above_half_of_its_peak_begins_there() -> None:
    assert size_at_half_peak([1024, 2048], [9e9, 10e9]) == 1024
