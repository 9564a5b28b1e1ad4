import math
import random

import pytest

from clusterbench.formulas.checkpointing import best_interval, training_share

HOUR = 3600.0


def simulated(interval_s: float, save_s: float, mtbf_s: float, behind_s: float, saves: int) -> float:
    """Share of training in a job that is played through, one failure after the other."""
    chance = random.Random(3)
    fails = chance.expovariate(1 / mtbf_s)
    elapsed = kept = 0.0
    pending: list[float] = []  # when what was trained until a save is on the disk
    while kept < saves:
        ends = elapsed + interval_s + save_s
        for lands in [*pending]:
            if lands <= min(ends, fails):
                kept += 1
                pending.remove(lands)
        if fails < ends:
            elapsed, fails = fails, fails + chance.expovariate(1 / mtbf_s)
            pending.clear()
            continue
        elapsed = ends
        pending.append(ends + behind_s)
    return kept * interval_s / elapsed


@pytest.mark.parametrize(
    ("save_s", "behind_s", "mtbf_h"), [(30.0, 0.0, 3.0), (300.0, 0.0, 1.0), (2.0, 60.0, 3.0), (10.0, 0.0, 100.0)]
)
def test_the_share_is_that_of_a_job_that_is_played_through(save_s, behind_s, mtbf_h):
    interval = best_interval(save_s, mtbf_h * HOUR)
    said = training_share(interval, save_s, mtbf_h * HOUR, behind_s)
    assert simulated(interval, save_s, mtbf_h * HOUR, behind_s, 30_000) == pytest.approx(said, rel=0.01)


@pytest.mark.parametrize("save_s", [0.01, 1.0, 30.0, 600.0, 7200.0])
def test_no_other_interval_keeps_more(save_s):
    best = best_interval(save_s, 3 * HOUR)
    share = training_share(best, save_s, 3 * HOUR)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert training_share(factor * best, save_s, 3 * HOUR) < share


def test_of_short_saves_it_is_youngs_and_it_grows_with_both():
    assert best_interval(0.01, 1e5 * HOUR) == pytest.approx(math.sqrt(2 * 0.01 * 1e5 * HOUR), rel=1e-4)
    assert best_interval(10, HOUR) < best_interval(20, HOUR) < best_interval(20, 2 * HOUR) < 2 * HOUR
    assert best_interval(1e6, HOUR) == pytest.approx(HOUR)


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_times_that_are_none_are_refused(save_s, mtbf_s):
    with pytest.raises(ValueError, match="are above 0"):
        best_interval(save_s, mtbf_s)
