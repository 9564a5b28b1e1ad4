"""What a ranking is worth: perfect, reversed, and with one good pick among the first."""

import pytest

from clusterbench.pricing.scores import FEWEST, Scored, regret, scores_of, spearman

SPEEDS = [100.0, 90.0, 70.0, 40.0, 20.0]


def cell(predicted, name="a"):
    return [Scored(name, measured, of) for measured, of in zip(SPEEDS, predicted, strict=True)]


def test_a_perfect_ranking_has_no_regret_and_no_error():
    scores = scores_of(cell(SPEEDS))
    assert (scores.cells, scores.layouts, scores.spearman, scores.near_error) == (1, FEWEST, 1.0, 0.0)
    assert set(scores.regret.values()) == {(0.0, 0.0, 0.0)}


def test_a_reversed_ranking_regrets_until_enough_are_tried():
    backwards = cell(SPEEDS[::-1])
    assert spearman(SPEEDS, SPEEDS[::-1]) == -1.0
    assert [round(regret(backwards, number), 4) for number in (1, 3, 5)] == [4.0, round(100 / 70 - 1, 4), 0.0]


def test_predictions_of_hopeless_layouts_count_for_rank_and_not_for_error():
    scores = scores_of(cell([110.0, 99.0, 77.0, 1.0, 0.5]))
    assert scores.near_error == pytest.approx(0.1)
    assert scores.near_bias == pytest.approx(0.1)


def test_cells_with_too_few_layouts_are_left_out():
    assert scores_of(cell(SPEEDS)[:-1]) is None
    both = scores_of([*cell(SPEEDS), *cell(SPEEDS[::-1], "b"), Scored("c", 1.0, 1.0)])
    assert (both.cells, both.layouts) == (2, 2 * FEWEST)
    assert both.regret[1] == (2.0, 2.0, 4.0)
    assert (both.spearman, both.lowest_spearman) == (0.0, -1.0)


def test_equal_values_share_their_rank():
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == 1.0
