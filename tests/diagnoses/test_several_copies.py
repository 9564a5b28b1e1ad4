from __future__ import annotations

from dataclasses import replace

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer
from clusterbench.diagnoses.several_copies import SeveralCopies
from clusterbench.run_folder import COPIES
from tests.report.synthetic import case, observation, outcome, reading

ONE, TWO = case("a", repeats=2), case("b", repeats=2)


def run(*copies: tuple[str, str]) -> Reading:
    """A run of two cases, each repeated: which copy ran which repeat."""
    records = [
        (outcome(of, repeat=repeat, copy=copy), observation(of, repeat=repeat))
        for of, by in zip((ONE, TWO), copies, strict=True)
        for repeat, copy in enumerate(by)
    ]
    return replace(reading(*records, cases=[ONE, TWO]), environment={COPIES: {"aa": "0.1.0", "bb": "0.2.0"}})


def test_times_of_two_copies_are_named():
    (found,) = SeveralCopies().findings(run(("aa", "bb"), ("aa", "aa")))
    assert found.what == (
        "clusterbench 0.1.0 with sources aa made results of 2 cases and clusterbench 0.2.0 with sources bb made "
        "results of 1 case; times of 1 case are of both: planted/1n4/a"
    )
    assert found.severity == "warning"


def test_cases_of_one_copy_each_are_worth_a_note():
    (found,) = SeveralCopies().findings(run(("aa", "aa"), ("bb", "bb")))
    assert found.severity == "note"
    assert found.what.endswith("with sources bb made results of 1 case; no case is of both")


def test_records_of_before_copies_were_told_apart_are_named_as_such():
    (found,) = SeveralCopies().findings(run(("", "bb"), ("", "")))
    assert found.what.startswith("a clusterbench of before sources were recorded made results of 2 cases and ")


def test_one_copy_is_silent():
    assert SeveralCopies().answer(run(("aa", "aa"), ("aa", "aa"))) == Answer()
    assert SeveralCopies().answer(run(("", ""), ("", ""))) == Answer()
