import heapq
import math
import random

import pytest

from clusterbench.formulas.checkpointing import (
    best_interval,
    spares_worth_most,
    time_between_failures,
    training_share,
    waiting_share,
)

HOUR = 3600.0


def simulated(
    interval_s: float, save_s: float, mtbf_s: float, behind_s: float, saves: int, restart_s: float = 0.0
) -> float:
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
            while fails < elapsed + restart_s:  # the restart fails, too
                elapsed, fails = fails, fails + chance.expovariate(1 / mtbf_s)
            elapsed += restart_s
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


@pytest.mark.parametrize(("restart_s", "behind_s"), [(600.0, 0.0), (3 * HOUR, 0.0), (300.0, 60.0)])
def test_restarts_take_what_they_take_in_a_job_that_is_played_through(restart_s, behind_s):
    interval = best_interval(30.0, 3 * HOUR)
    said = training_share(interval, 30.0, 3 * HOUR, behind_s, restart_s)
    assert simulated(interval, 30.0, 3 * HOUR, behind_s, 30_000, restart_s) == pytest.approx(said, rel=0.015)
    assert said < training_share(interval, 30.0, 3 * HOUR, behind_s)


@pytest.mark.parametrize(
    ("num_gpus", "failures", "hours"),
    [
        # Kokolis et al. 2024, arXiv:2410.21680: 16,384 GPUs of RSC-1; eight in a node
        (16_384, 6.50, 1.8),
        # Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.4: 419 of 466 interruptions in 54 days were unexpected
        (16_384, 419 / (54 * 2.048), 54 * 24 / 419),
    ],
)
def test_failures_are_as_often_as_published(num_gpus, failures, hours):
    assert time_between_failures(num_gpus // 8, failures) / HOUR == pytest.approx(hours, rel=0.01)
    assert time_between_failures(num_gpus // 16, failures) / HOUR == pytest.approx(2 * hours, rel=0.01)


def test_more_than_nine_tenths_of_llama_3s_time_was_training_where_restarts_took_minutes():
    """Of 3.1 hours between failures (arXiv:2407.21783, section 3.3.4: "higher than 90 % effective training time")."""
    mtbf = time_between_failures(2048, 419 / (54 * 2.048))
    best = best_interval(10.0, mtbf)
    assert training_share(best, 10.0, mtbf, restart_s=5 * 60) > 0.9
    assert training_share(best, 10.0, mtbf, restart_s=15 * 60) < 0.9
    # without spares, and a node in repair for a day, it would have stood most of the time
    assert waiting_share(0, 24 * HOUR, mtbf) == pytest.approx(24 / (24 + mtbf / HOUR))


@pytest.mark.parametrize(("lines", "erlangs"), [(1, 0.0101), (2, 0.153), (5, 1.36), (10, 4.46), (20, 12.0)])
def test_waiting_is_erlangs_loss_of_1_percent_as_his_tables_have_it(lines, erlangs):
    """Lines, and the traffic that tables of Erlang B have for a loss of 1 %, to three digits."""
    assert waiting_share(lines - 1, erlangs, 1.0) == pytest.approx(0.01, rel=0.025)


def standing(num_spares: int, repair_s: float, mtbf_s: float, failures: int) -> float:
    """Share of time in which a job stands that is played through, with repairs that all take as long."""
    chance = random.Random(5)
    now = stood = 0.0
    back = list[float]()
    for _ in range(failures):
        now += chance.expovariate(1 / mtbf_s)
        while back and back[0] <= now:
            heapq.heappop(back)
        heapq.heappush(back, now + repair_s)
        if len(back) > num_spares:
            ready = heapq.heappop(back)
            stood, now = stood + ready - now, ready
    return stood / now


@pytest.mark.parametrize(("num_spares", "repair_h"), [(0, 1.0), (0, 24.0), (3, 6.0), (8, 24.0)])
def test_a_job_stands_as_long_as_one_that_is_played_through(num_spares, repair_h):
    said = waiting_share(num_spares, repair_h * HOUR, 3 * HOUR)
    assert standing(num_spares, repair_h * HOUR, 3 * HOUR, 200_000) == pytest.approx(said, rel=0.02)


def test_spares_are_worth_most_where_one_more_brings_less_than_it_costs():
    repair, mtbf, nodes = 24 * HOUR, 3 * HOUR, 64

    def worth(spares):
        return (1 - waiting_share(spares, repair, mtbf)) * nodes / (nodes + spares)

    best = spares_worth_most(nodes, repair, mtbf)
    assert worth(best) == max(worth(spares) for spares in range(100))
    assert spares_worth_most(2, HOUR, 1e4 * HOUR) == 0


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
