from typing import Any

from clusterbench.cases import Reading
from clusterbench.diagnoses import examine
from clusterbench.report.verdict import verdict
from tests.report.synthetic import case, observation, outcome, reading

ONE, TWO = case("a"), case("b")


def judged(*records: Any, cases: Any = (ONE, TWO)) -> tuple[str, str, int]:
    read: Reading = reading(*records, cases=cases)
    found = verdict(read, examine(read))
    return found.word, found.sentence, found.exit_code


def test_a_run_passes_when_every_case_was_measured() -> None:
    assert judged((outcome(ONE), observation(ONE)), (outcome(TWO), observation(TWO))) == (
        "PASS",
        "Every case that should have been measured was, and no error was found: 2 measured.",
        0,
    )


def test_a_fault_fails_the_run() -> None:
    assert judged((outcome(ONE), observation(ONE)), (outcome(TWO, "wrong", reason="rank 1 differs"), None)) == (
        "FAIL",
        "1 error was found; 1 of 2 cases were measured, 1 ended badly.",
        1,
    )


def test_an_expected_outcome_and_a_skipped_case_change_nothing() -> None:
    tight, absent = case("c", expected_outcomes=("out_of_memory",)), case("d")
    word, sentence, exit_code = judged(
        (outcome(ONE), observation(ONE)),
        (outcome(tight, "out_of_memory"), None),
        (outcome(absent, "skipped", reason="no GPU"), None),
        cases=(ONE, tight, absent),
    )
    assert (word, exit_code) == ("PASS", 0)
    assert sentence.endswith("1 measured, 1 out of memory as expected, 1 skipped.")


def test_a_case_not_run_yet_leaves_the_run_incomplete() -> None:
    assert judged((outcome(ONE), observation(ONE))) == ("INCOMPLETE", "1 of 2 cases have a figure; 1 not run yet.", 1)


def test_an_ok_without_its_record_is_not_believed() -> None:
    assert judged((outcome(ONE), None), cases=[ONE]) == (
        "INCOMPLETE",
        "0 of 1 case have a figure; 1 lack a repeat or a whole record.",
        1,
    )


def test_a_missing_repeat_leaves_the_run_incomplete() -> None:
    twice = case("a", repeats=2)
    assert judged((outcome(twice), observation(twice)), cases=[twice])[0] == "INCOMPLETE"


def test_nothing_measured_is_never_a_pass() -> None:
    assert judged((outcome(ONE, "skipped", reason="no GPU"), None), cases=[ONE]) == (
        "INCOMPLETE",
        "Nothing was measured: 1 skipped.",
        0,
    )
    assert judged(cases=[])[0] == "INCOMPLETE"
