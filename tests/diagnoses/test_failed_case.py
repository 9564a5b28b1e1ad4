from clusterbench.diagnoses.failed_case import FailedCase
from tests.report.synthetic import case, observation, outcome, reading


def test_a_lost_case_is_named_with_rank_host_and_phase() -> None:
    one = case("a")
    lost = outcome(one, "timeout", reason="stopped after 60 s", rank=2, host="n3", phase="warm", log="logs/x.log")
    (finding,) = FailedCase().findings(reading((lost, None), cases=[one]))
    assert finding.where == "planted/1n4/a, rank 2, host n3, after phase 'warm'"
    assert finding.what == "made no progress and was stopped"
    assert (finding.severity, finding.evidence, finding.log) == ("error", "stopped after 60 s", "logs/x.log")


def test_an_expected_outcome_is_no_finding() -> None:
    one = case("a", expected_outcomes=("out_of_memory",))
    assert FailedCase().findings(reading((outcome(one, "out_of_memory"), None), cases=[one])) == []


def test_a_skipped_case_is_no_finding() -> None:
    one = case("a")
    assert FailedCase().findings(reading((outcome(one, "skipped", reason="no GPU"), None), cases=[one])) == []


def test_a_failure_that_went_away_is_a_warning() -> None:
    one = case("a")
    found = FailedCase().findings(
        reading(
            (outcome(one, "failed", reason="killed"), None),
            (outcome(one, attempt=2), observation(one, attempt=2)),
            cases=[one],
        )
    )
    assert [(finding.severity, finding.what) for finding in found] == [
        ("warning", "failed at attempt 1, and ended well when tried again")
    ]


def test_one_bad_repeat_among_good_ones_is_an_error() -> None:
    one = case("a", repeats=2)
    (finding,) = FailedCase().findings(
        reading(
            (outcome(one), observation(one)),
            (outcome(one, "wrong", repeat=2, reason="rank 1 differs"), None),
            cases=[one],
        )
    )
    assert finding.what == "computed a wrong result and was not timed in one repeat; 1 of 2 repeats were measured"


def test_health_is_silent() -> None:
    one = case("a")
    assert FailedCase().findings(reading((outcome(one), observation(one)), cases=[one])) == []
