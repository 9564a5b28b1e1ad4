from clusterbench.diagnoses.failed_case import FailedCase
from tests.report.synthetic import case, observation, outcome, reading


def test_a_lost_case_is_named_with_rank_host_and_phase() -> None:
    planned = case("a")
    lost = outcome(planned, "timeout", reason="stopped after 60 s", rank=2, host="n3", phase="warm", log="logs/x.log")
    (finding,) = FailedCase().findings(reading((lost, None), cases=[planned]))
    assert finding.where == "planted/1n4/a, rank 2, host n3, after phase 'warm'"
    assert finding.what == "made no progress and was stopped"
    assert (finding.severity, finding.evidence, finding.log) == ("error", "stopped after 60 s", "logs/x.log")


def test_an_expected_outcome_is_no_finding() -> None:
    planned = case("a", expected_outcomes=("out_of_memory",))
    assert FailedCase().findings(reading((outcome(planned, "out_of_memory"), None), cases=[planned])) == []


def test_a_skipped_case_is_no_finding() -> None:
    planned = case("a")
    assert FailedCase().findings(reading((outcome(planned, "skipped", reason="no GPU"), None), cases=[planned])) == []


def test_a_failure_that_went_away_is_a_warning() -> None:
    planned = case("a")
    found = FailedCase().findings(
        reading(
            (outcome(planned, "failed", reason="killed"), None),
            (outcome(planned, attempt=2), observation(planned, attempt=2)),
            cases=[planned],
        )
    )
    assert [(finding.severity, finding.what) for finding in found] == [
        ("warning", "failed at attempt 1, and ended well when tried again")
    ]


def test_one_bad_repeat_among_good_ones_is_an_error() -> None:
    planned = case("a", repeats=2)
    (finding,) = FailedCase().findings(
        reading(
            (outcome(planned), observation(planned)),
            (outcome(planned, "wrong", repeat=2, reason="rank 1 differs"), None),
            cases=[planned],
        )
    )
    assert finding.what == "computed a wrong result and was not timed in one repeat; 1 of 2 repeats were measured"


def test_health_is_silent() -> None:
    planned = case("a")
    assert FailedCase().findings(reading((outcome(planned), observation(planned)), cases=[planned])) == []
