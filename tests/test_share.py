from __future__ import annotations

import re
from fractions import Fraction

import pytest

from tests import share
from tests.share import choose, commit, first_drawn, left_out, left_out_in_turn, number_of, some_of, told

CELLS = [f"cell {number}" for number in range(30)]


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "share", Fraction(1, 3))
    monkeypatch.setattr(share, "seed", "a commit")


@pytest.mark.usefixtures("third")
def test_a_share_keeps_its_order_and_is_never_empty() -> None:
    drawn = some_of(CELLS, str)
    assert len(drawn) == 10
    assert drawn == sorted(drawn, key=CELLS.index)
    assert some_of(CELLS[:1], str) == CELLS[:1]
    assert (number_of(30), number_of(1)) == (10, 1)
    assert told().startswith("1/3 of the cells of large matrices ran, drawn by commit a commit")


@pytest.mark.usefixtures("third")
def test_each_function_is_a_matrix_of_its_own() -> None:
    names = [f"tests/test_{file}.py::test_it[{cell}-[1]]" for file in "ab" for cell in range(6)]
    left = left_out([*names, "tests/test_c.py::test_it", "tests/test_d.py::test_it[one]"])
    assert [sum(f"test_{file}.py" in name for name in left) for file in "abcd"] == [4, 4, 0, 0]
    assert left < {*names}


def test_of_tests_in_turn_four_times_the_share_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "seed", "a commit")
    ran = dict[Fraction, set[str]]()
    for of_cells in (Fraction(1, 12), Fraction(1, 3), Fraction(1)):
        monkeypatch.setattr(share, "share", of_cells)
        ran[of_cells] = {*CELLS} - left_out_in_turn(CELLS)
    assert [len(names) for names in ran.values()] == [10, 30, 30]
    assert told() == ""
    monkeypatch.setattr(share, "share", Fraction(1, 12))
    assert told().startswith("1/12 of the cells of large matrices and 1/3 of the tests that run in turn ran, drawn by ")


def test_all_run_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "share", Fraction(1))
    assert some_of(CELLS, str) == CELLS
    assert told() == ""


def test_every_cell_runs_after_a_few_commits() -> None:
    drawn = [set(first_drawn(CELLS, str, Fraction(1, 3), f"commit {number}")) for number in range(30)]
    assert set().union(*drawn) == set(CELLS)
    assert len({frozenset(each) for each in drawn}) > 20
    assert drawn[0] == set(first_drawn(CELLS[::-1], str, Fraction(1, 3), "commit 0"))


@pytest.mark.parametrize("text", ["0", "2", "-1/3", "a third", "1/0", "nan"])
def test_a_share_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "share", Fraction(1))
    with pytest.raises(ValueError, match=re.escape(f"must be above 0 and at most 1, as 1/3, not {text!r}")):
        choose(text)


def test_a_third_is_drawn_by_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "share", Fraction(1))
    monkeypatch.setattr(share, "seed", "")
    choose("1/3")
    assert (share.share, share.seed) == (Fraction(1, 3), commit())
