"""The search for the hosts of a failure, against faults that are planted in a function: no process is started."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from clusterbench.launch.suspects import MOST_CULPRITS, TRIES, Found, Setting, Try, Wanted, next_step


def names(number, letter="h"):
    return tuple(f"{letter}{index}" for index in range(number))


def search(hosts, *faults, spares=0, fits=lambda size: True, shows=lambda: True):
    """How a search ends among ``hosts`` of which each set in ``faults`` fails where it is whole; and its runs."""
    setting, tries = Setting(names(hosts), names(spares, "s"), fits), []
    while not isinstance(step := next_step(setting, tries), Found):
        assert isinstance(step, Wanted)
        assert len(step.hosts) == len(set(step.hosts)) >= 2
        assert setting.fits(len(step.hosts))
        assert set(step.hosts) <= {*setting.hosts, *setting.spares}
        assert not any(each.answer == "failed" and set(each.hosts) < set(step.hosts) for each in tries)  # it is known
        failed = any(set(fault) <= set(step.hosts) for fault in faults) and shows()
        tries.append(Try(step.hosts, "failed" if failed else "ok"))
        assert len(tries) < 500
    return step, tries


def runs_until_known(hosts, tries):
    """Runs after the first until only one host, or only two together, are left that explain every run."""
    guesses = [{host} for host in names(hosts)] + [{*pair} for pair in itertools.combinations(names(hosts), 2)]
    for number, each in enumerate(tries):
        guesses = [guess for guess in guesses if (guess <= set(each.hosts)) == (each.answer == "failed")]
        if len(guesses) == 1:
            return number
    raise AssertionError("more than one guess is left")


def halvings(hosts):
    return math.ceil(math.log2(hosts))


# One host


@pytest.mark.parametrize("hosts", [*range(3, 41), 63, 64, 65])
def test_one_culprit_is_found_and_proven_in_two_runs_a_halving(hosts):
    for culprit in names(hosts):
        found, tries = search(hosts, [culprit])
        assert (found.kind, found.culprits) == ("host", ((culprit,),))
        assert found.without_it == tuple(host for host in names(hosts) if host != culprit)
        assert len(tries) - 1 <= 2 * halvings(hosts)  # after the run that reproduced it, the proof included
        assert len(tries) <= halvings(hosts) + 3


@pytest.mark.parametrize("hosts", [128, 129, 200, 255, 256])
def test_one_culprit_of_many_is_found_in_fewer(hosts):
    for culprit in [*random.Random(hosts).sample(names(hosts), 12), names(hosts)[0], names(hosts)[-1]]:
        found, tries = search(hosts, [culprit])
        assert found.culprits == ((culprit,),)
        assert len(tries) <= halvings(hosts) + 3 < 2 * halvings(hosts)


@pytest.mark.parametrize("culprit", names(2))
def test_of_two_hosts_one_is_told_with_a_third(culprit):
    found, tries = search(2, [culprit], spares=1)
    assert found.culprits == ((culprit,),)
    assert len(tries) - 1 <= 2
    assert search(2, [culprit])[0] == Found("together", hosts=("h0", "h1"))


@pytest.mark.parametrize("spares", [1, 2, 5])
@pytest.mark.parametrize("hosts", [2, 3, 4, 8, 13])
def test_a_case_that_needs_all_its_hosts_has_spares_take_places(hosts, spares):
    for culprit in names(hosts):
        found, tries = search(hosts, [culprit], spares=spares, fits=lambda size: size == hosts)
        assert found.culprits == ((culprit,),)
        assert {len(each.hosts) for each in tries} == {hosts}
        if 2 * spares >= hosts:
            assert len(tries) - 1 <= 2 * halvings(hosts)


def test_a_case_that_needs_all_its_hosts_and_has_no_spares_is_not_told_apart():
    found, tries = search(4, ["h1"], fits=lambda size: size == 4)
    assert (found, len(tries)) == (Found("together", hosts=names(4)), 1)


@pytest.mark.parametrize("fits", [lambda size: size % 2 == 0, lambda size: size & (size - 1) == 0])
def test_a_case_may_run_on_some_numbers_of_hosts_only(fits):
    for culprit in names(16):
        assert search(16, [culprit], fits=fits)[0].culprits == ((culprit,),)


# Two that fail only together


def test_two_of_four_that_fail_only_together_are_known_after_four_runs():
    for pair in itertools.combinations(names(4), 2):
        found, tries = search(4, pair)
        assert (found.kind, found.culprits) == ("pair", (pair,))
        assert runs_until_known(4, tries) <= 4
        assert Counter(each.hosts for each in tries if each.answer == "failed")[pair] == 2  # the proof


@pytest.mark.parametrize("hosts", [3, 5, 8, 9, 16, 17, 24])
def test_two_that_fail_only_together_are_known_after_one_run_more_than_one_host(hosts):
    for pair in itertools.combinations(names(hosts), 2):
        found, tries = search(hosts, pair)
        assert (found.kind, found.culprits) == ("pair", (pair,))
        assert runs_until_known(hosts, tries) <= 2 * halvings(hosts) + 1
        assert len(tries) <= 2 * halvings(hosts) + 9


def test_three_that_fail_only_together_are_no_pair():
    for three in itertools.combinations(names(6), 3):
        assert search(6, three)[0].kind == "together"


# More than one fault


def test_two_culprits_are_both_named():
    for pair in itertools.combinations(names(8), 2):
        found, _ = search(8, *[[host] for host in pair])
        assert found.kind == "several"
        assert sorted(found.culprits) == [(host,) for host in pair]
        assert not set(found.without_it) & set(pair)


@pytest.mark.parametrize("number", [3, 5])
def test_of_more_culprits_none_is_wrong(number):
    for seed in range(40):
        culprits = random.Random(seed).sample(names(12), number)
        found, _ = search(12, *[[host] for host in culprits])
        assert found.kind == "several"
        assert {host for culprit in found.culprits for host in culprit} <= set(culprits)
        assert len(found.culprits) <= MOST_CULPRITS


def test_a_case_that_fails_everywhere_names_no_host():
    everywhere = [list(pair) for pair in itertools.combinations(names(5), 2)]
    assert search(5, *everywhere)[0] == Found("several", hosts=("h0", "h1"))


def test_a_spare_that_is_at_fault_itself_names_no_healthy_host():
    for culprit in names(4):
        found, _ = search(4, [culprit], ["s0"], spares=2, fits=lambda size: size == 4)
        assert {host for each in found.culprits for host in each} <= {culprit, "s0"}


# What comes and goes


def test_what_does_not_come_again_in_three_runs_is_not_reproduced():
    found, tries = search(4)
    assert found == Found("not reproduced")
    assert [each.hosts for each in tries] == [names(4)] * TRIES


def test_what_came_in_the_second_try_has_passed_after_three_runs_only():
    order = iter([False])
    found, tries = search(4, ["h2"], shows=lambda: next(order, True))
    assert found.culprits == (("h2",),)
    passes = Counter(each.hosts for each in tries if each.answer == "ok")
    assert passes[names(4)] == 1
    assert {count for hosts, count in passes.items() if hosts != names(4)} == {TRIES}


@pytest.mark.parametrize(("share", "fewest_right"), [(0.5, 60), (0.9, 185)])
def test_one_host_that_fails_now_and_then_is_named_alone_or_not_at_all(share, fewest_right):
    """Of 200 searches; where two are named, which is rare, it is one of them."""
    kinds: Counter[str] = Counter()
    for seed in range(200):
        chance = random.Random(seed)
        culprit = chance.choice(names(8))
        found, _ = search(8, [culprit], shows=lambda chance=chance: chance.random() < share)
        named = {host for each in found.culprits for host in each}
        assert not named or culprit in named
        kinds["right" if named == {culprit} else "with another" if named else "none"] += 1
    assert kinds["right"] >= fewest_right
    assert kinds["with another"] <= 20, kinds
