from clusterbench.diagnoses.throttling import Throttling
from tests.report.synthetic import case, observation, outcome, reading


def findings(reasons: dict[str, float] | None) -> list:
    one = case("a")
    telemetry = {"n1": {"GPU-3f": {"index": 2, "throttle_reasons": reasons}}}
    return Throttling().findings(reading((outcome(one), observation(one, telemetry=telemetry)), cases=[one]))


def test_a_hot_gpu_is_named() -> None:
    (finding,) = findings({"hw_thermal": 0.4})
    assert (finding.where, finding.what, finding.severity) == (
        "GPU 2 on n1",
        "clocks were lowered (hw thermal)",
        "warning",
    )
    assert finding.evidence == "in 1 of 1 cases; most in planted/1n4/a, in 40 % of the samples"


def test_the_power_limit_is_a_note() -> None:
    assert [finding.severity for finding in findings({"sw_power_cap": 1.0})] == ["note"]


def test_idle_and_set_clocks_are_silent() -> None:
    assert findings({"gpu_idle": 1.0, "application_clocks": 1.0, "hw_slowdown": 0.0}) == []


def test_a_gpu_that_gave_no_reasons_is_silent() -> None:
    assert findings(None) == []
