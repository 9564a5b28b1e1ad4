"""Scaling on hand calculations."""

from __future__ import annotations

import pytest

from clusterbench.formulas.scaling import scaling_efficiency, speedup


def test_the_smallest_run_has_efficiency_one():
    assert scaling_efficiency(40_000, 8, 40_000, 8) == 1


def test_efficiency_is_per_rank():
    # Ultra-Scale Playbook, 1B with DP 8 to 64: 40149.94 and 31112.23 tokens/s/GPU.
    assert scaling_efficiency(64 * 31112.23, 64, 8 * 40149.94, 8) == pytest.approx(0.7749, abs=1e-4)


def test_ideal_speedup_is_the_ratio_of_ranks():
    assert speedup(8.0, 1.0) == 8


def test_nothing_divides_by_zero():
    with pytest.raises(ValueError, match="throughput of 0"):
        scaling_efficiency(1, 1, 0, 1)
    with pytest.raises(ValueError, match="a run took 0 s"):
        speedup(1, 0)
