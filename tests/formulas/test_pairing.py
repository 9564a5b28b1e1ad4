from itertools import combinations

import pytest

from clusterbench.formulas.pairing import (
    MOST_IN_FULL,
    bisection,
    disjoint,
    num_links,
    random_rounds,
    rounds_of,
    tournament,
)


@pytest.mark.parametrize("count", range(2, 20))
def test_a_tournament_has_every_pair_once_and_nobody_twice_in_a_round(count):
    rounds = tournament(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))
    assert all(len({unit for pair in pairs for unit in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)


@pytest.mark.parametrize("count", [0, 1])
def test_one_alone_meets_nobody(count):
    assert tournament(count) == []
    assert bisection(count) == ()


def test_a_bisection_crosses_the_middle_everywhere_at_once():
    assert bisection(8) == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(("count", "fewest"), [(64, 8), (33, 7)])
def test_random_partners_are_others_every_time_and_the_same_for_a_seed(count, fewest):
    rounds = random_rounds(count, 8, seed=3)
    pairs = [pair for of_round in rounds for pair in of_round]
    assert len(pairs) == len(set(pairs))
    assert min(sum(unit in pair for pair in pairs) for unit in range(count)) >= fewest
    assert rounds == random_rounds(count, 8, seed=3)
    assert rounds != random_rounds(count, 8, seed=4)


def test_all_pairs_are_measured_up_to_16_and_the_bisection_with_random_partners_beyond():
    assert MOST_IN_FULL == 16
    assert sum(map(len, rounds_of(16, partners=1, seed=0))) == num_links(16) == 120
    rounds = rounds_of(100, partners=8, seed=0)
    pairs = [pair for of_round in rounds for pair in of_round]
    assert rounds[0] == bisection(100)
    assert len(pairs) == len(set(pairs))
    assert 8 * 50 <= len(pairs) <= 9 * 50


def test_pairs_that_share_somebody_are_in_different_rounds():
    assert disjoint([(0, 1), (1, 2), (3, 4), (0, 2)]) == [((0, 1), (3, 4)), ((1, 2),), ((0, 2),)]
