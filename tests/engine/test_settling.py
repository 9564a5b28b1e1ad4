"""Warm-up that ends when clocks have settled, on devices that ramp, rattle or wait: time is what they say it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from clusterbench.engine.loop import measure, settle
from clusterbench.engine.rig import Rig
from clusterbench.engine.settling import Order, Rule, Stretch, decided_by_rank_0, next_order, warm_up_of
from tests.fakes import Device
from tests.ranks import run_ranks

RULE = Rule()


def nowhere(iteration: int) -> None:
    pass


def alone(asked: int = 20, rule: Rule = RULE, *others: Device) -> Callable[[Stretch], Order]:
    """The decision as rank 0 has it, beside ranks that run the same on devices of their own."""
    past: list[Stretch] = []

    def decide(own: Stretch) -> Order:
        theirs = [sum(measure(other.run, other, own.iterations, nowhere)) for other in others]
        past.append(Stretch(own.iterations, max([own.seconds, *theirs])))
        return next_order(past, asked, rule)

    return decide


def settled(device: Device, asked: int = 20, *others: Device) -> tuple[Order, list[float]]:
    return settle(device.run, device, nowhere, alone(asked, RULE, *others))


def steady(each_s: float) -> Device:
    return Device(lambda now_s: each_s)


def ramping(each_s: float, slower: float, within_s: float) -> Device:
    """Begins fast, and comes down to ``slower`` times as long."""
    return Device(lambda now_s: each_s * (slower - (slower - 1) * math.exp(-now_s / within_s)))


def getting_hot() -> Device:
    """Is slower and slower, without end."""
    return Device(lambda now_s: 1e-3 * (1 + 0.05 * now_s))


def noisy(share: float) -> Device:
    """Every fourth of its half seconds is slower by a share."""
    return Device(lambda now_s: 1e-3 * (1 + share * (int(2 * now_s) % 4 == 0)))


def test_a_steady_device_is_timed_for_two_seconds_after_the_first():
    device = steady(1e-3)
    order, _ = settled(device)
    assert (order.is_settled, order.drift) == (True, pytest.approx(0))
    assert 1.0 <= device.now_s <= 1.3
    assert order.warm_up_s == pytest.approx(device.now_s)
    assert order.iterations * 1e-3 >= 2.0


def test_clocks_that_come_down_are_waited_for():
    device = ramping(1e-3, slower=1.3, within_s=1.0)
    order, burst_s = settled(device)
    assert order.is_settled
    assert 3.0 < device.now_s < 8.0
    timed = measure(device.run, device, order.samples, nowhere, order.calls)
    assert max(timed) / min(timed) < 1.02
    assert sum(burst_s) / len(burst_s) < 0.8 * timed[0]  # what few iterations after an idle device would have said
    assert sum(timed) * order.calls >= 2.0


def test_what_never_settles_is_timed_after_ten_seconds_and_says_so():
    device = getting_hot()
    order, burst_s = settled(device)
    assert (order.kind, order.is_settled) == ("timed", False)
    assert order.drift > 0.01
    assert 9.0 < device.now_s <= 10.5
    assert warm_up_of(order, burst_s).drift == order.drift


def test_noise_within_the_limit_is_no_drift_and_beyond_it_is():
    assert settled(noisy(0.005))[0].warm_up_s < 1.3
    device = noisy(0.1)
    order, _ = settled(device)
    assert order.is_settled
    assert device.now_s > 1.3


def test_one_rank_that_comes_down_keeps_all_of_them_warming_up():
    slow = ramping(1.2e-3, slower=1.3, within_s=1.0)
    assert settled(steady(1e-3))[0].warm_up_s < 1.3
    order, _ = settled(steady(1e-3), 20, slow)
    assert order.is_settled
    assert order.warm_up_s > 3.0


def test_two_stretches_that_are_too_short_do_not_agree():
    assert not next_order([Stretch(1, 0.001), Stretch(20, 0.02), Stretch(20, 0.02)], 20, RULE).is_settled


def test_a_step_longer_than_a_stretch_is_a_stretch_itself():
    order, burst_s = settled(steady(3.0), asked=5)
    assert (order.is_settled, order.iterations, order.warm_up_s, burst_s) == (True, 5, 6.0, [3.0])


def test_a_step_longer_than_all_the_time_is_run_twice_and_judged():
    device = Device(lambda now_s: 20.0 if now_s < 1 else 19.0)
    order, _ = settled(device, asked=2)
    assert (order.is_settled, order.iterations, order.warm_up_s) == (False, 2, 39.0)


def test_a_hiccup_of_the_first_iteration_changes_nothing():
    device = Device(lambda now_s: 1.0 if now_s == 0 else 1e-3)
    order, _ = settled(device)
    assert order.is_settled
    assert order.iterations * 1e-3 >= 2.0


def test_what_the_first_iteration_compiles_takes_nothing_of_the_time_to_settle():
    fast = ramping(1e-3, slower=1.3, within_s=1.0)
    device = Device(lambda now_s: 60.0 if now_s == 0 else fast.each_s(now_s - 60.0))
    order, _ = settled(device)
    assert order.is_settled
    assert 63.0 < order.warm_up_s < 68.0


def test_of_microseconds_a_sample_is_a_mean_of_many_and_the_record_stays_small():
    device = steady(5e-6)
    order, _ = settled(device)
    assert order.samples <= RULE.most_samples
    timed = measure(device.run, device, order.samples, nowhere, order.calls)
    assert timed == pytest.approx([5e-6] * order.samples)
    assert order.iterations * 5e-6 >= 2.0


def test_who_asks_for_more_iterations_gets_each_of_them():
    order, _ = settled(steady(1e-3), asked=5000)
    assert (order.samples, order.calls) == (5000, 1)


def test_the_burst_is_what_was_asked_for_as_far_as_it_fits():
    assert settled(steady(1e-3), asked=20)[1] == pytest.approx([1e-3] * 20)
    assert len(settled(steady(0.1), asked=20)[1]) == 5


def test_nothing_is_decided_inside_a_stretch():
    device, calls = steady(0.01), []
    decide = alone()

    def noted(stretch: Stretch) -> Order:
        calls.append(("decide", device.now_s))
        return decide(stretch)

    settle(device.run, device, lambda number: calls.append(("begin", device.now_s)), noted)
    assert [name for name, _ in calls] == ["begin", "decide"] * (len(calls) // 2)
    begins, decisions = ([now_s for name, now_s in calls if name == which] for which in ("begin", "decide"))
    assert begins[1:] == decisions[:-1]


# Ranks


def on_a_rank(unlike: bool, never: bool, rule: Rule | None) -> tuple[Order, int, float]:
    """What this rank was told in the end, how often it ran, and its seconds; by itself where there is no rule."""
    import torch.distributed as dist

    rank = dist.get_rank()
    rig = Rig(rank=rank, world_size=2, local_rank=rank, host="here", device=torch.device("cpu"))
    device = ramping(1e-3, 1.3, 1.0) if unlike and rank == 1 else steady(1e-3)
    if never and rank == 1:
        device = getting_hot()
    decide = decided_by_rank_0(rig, 20, rule) if rule else alone()
    order, _ = settle(device.run, device, nowhere, decide)
    return order, device.calls, device.now_s


@pytest.mark.gloo
def test_all_ranks_leave_the_warm_up_together_when_the_slowest_has_settled():
    (first, first_calls, _), (second, second_calls, seconds) = run_ranks(2, on_a_rank, True, False, RULE)
    assert (first, first_calls) == (second, second_calls)
    assert first.is_settled
    assert 3.0 < seconds < 8.0
    own = run_ranks(2, on_a_rank, True, False, None)  # had each decided for itself, they would be apart
    assert own[0][1] != own[1][1]


@pytest.mark.gloo
def test_a_rank_that_never_settles_makes_all_of_them_say_so():
    (first, first_calls, _), (second, second_calls, _) = run_ranks(2, on_a_rank, False, True, RULE)
    assert (first, first_calls) == (second, second_calls)
    assert (first.kind, first.is_settled) == ("timed", False)
    assert 8.5 < first.warm_up_s <= 10.5
