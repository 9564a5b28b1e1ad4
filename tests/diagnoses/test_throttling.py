from dataclasses import replace

import pytest

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
        "clocks were lowered (hw thermal); figures of 1 case are void",
        "error",
    )
    assert finding.evidence == "in 1 of 1 cases; most in planted/1n4/a, in 40 % of the samples"


@pytest.mark.parametrize("reason", ["hw_slowdown", "sw_thermal", "hw_power_brake"])
def test_what_holds_a_gpu_back_is_an_error(reason: str) -> None:
    assert [finding.severity for finding in findings({reason: 0.1})] == ["error"]


def test_heat_that_hardware_and_driver_tell_of_is_one_finding() -> None:
    """A GPU that was hot had '2 errors', of the same words."""
    (finding,) = findings({"hw_thermal": 0.4, "sw_thermal": 0.8})
    assert finding.what == "clocks were lowered (hw thermal, sw thermal); figures of 1 case are void"
    assert finding.evidence.endswith("in 80 % of the samples")


def test_a_gpu_that_was_hot_is_not_among_those_whose_clocks_are_in_order() -> None:
    """Beside a hot GPU of 32 it read 'clocks of 32 GPUs were not lowered by heat or a fault'."""
    one = case("a")
    gpus = {f"GPU-{n}": {"index": n, "throttle_reasons": {"hw_thermal": 0.4} if n == 2 else {}} for n in range(4)}
    records = (outcome(one), observation(one, telemetry={"n1": gpus}))
    answer = Throttling().answer(reading(records, cases=[one]))
    assert answer.healthy == ("clocks of 3 GPUs were not lowered by heat or a fault",)


def test_a_reason_that_is_new_is_a_warning() -> None:
    assert [finding.severity for finding in findings({"reason_0x8000": 0.1})] == ["warning"]


def test_the_power_limit_is_a_note() -> None:
    assert [finding.severity for finding in findings({"sw_power_cap": 1.0})] == ["note"]


def test_the_power_limit_says_what_it_cost_once_for_a_host() -> None:
    one = case("a")
    gpus = {
        f"GPU-{index}": {"index": index, "throttle_reasons": {"sw_power_cap": 0.5}, "mean_busy_sm_clock_hz": clock_hz}
        for index, clock_hz in enumerate((1.7e9, 1.4e9))
    }
    hosts = {"n1": {"gpus": [{"index": index, "max_sm_clock_hz": 2.0e9} for index in range(2)]}}
    records = (outcome(one), observation(one, telemetry={"n1": gpus}))
    (finding,) = Throttling().findings(replace(reading(records, cases=[one]), environment={"hosts": hosts}))
    assert (finding.where, finding.severity) == ("2 GPUs on n1", "note")
    assert finding.evidence == (
        "in 1 of 1 cases; most in planted/1n4/a, in 50 % of the samples; GPU 1 ran at 1.40 GHz while it was busy, the "
        "lowest mean of a case and 30 % below its highest, 2.00 GHz"
    )


def test_the_power_limit_of_hosts_that_are_alike_is_one_note() -> None:
    """Of 4 hosts it stood in four lines, of 64 it would have in 64."""
    one = case("a")
    lowered = {"throttle_reasons": {"sw_power_cap": 0.5}}
    telemetry = {
        host: {f"GPU-{host}": {"index": 3, "mean_busy_sm_clock_hz": clock_hz, **lowered}}
        for host, clock_hz in (("n1", 1.7e9), ("n2", 1.5e9))
    }
    (finding,) = Throttling().findings(reading((outcome(one), observation(one, telemetry=telemetry)), cases=[one]))
    assert (finding.where, finding.severity, finding.host) == ("2 GPUs on 2 hosts (n1, n2)", "note", "")
    assert finding.among == ("n1", "n2")
    assert finding.evidence.endswith("; its clock while it was busy was 1.50 GHz, the lowest mean of a case")


def test_idle_and_set_clocks_are_silent() -> None:
    assert findings({"gpu_idle": 1.0, "application_clocks": 1.0, "hw_slowdown": 0.0}) == []


def test_a_gpu_that_gave_no_reasons_is_silent() -> None:
    assert findings(None) == []


def locked(clocks: list[float], reasons: dict[str, float], samples: int = 10) -> list:
    """What is said of a GPU whose clock was the same in all samples of a case."""
    cases = [case(f"c{number}") for number in range(len(clocks))]
    records = []
    for one, clock_hz in zip(cases, clocks, strict=True):
        gpu = {
            "index": 2,
            "throttle_reasons": reasons,
            "num_busy_samples": samples,
            "min_busy_sm_clock_hz": clock_hz,
            "mean_busy_sm_clock_hz": clock_hz,
        }
        records.append((outcome(one), observation(one, telemetry={"n1": {"GPU-3f": gpu}})))
    hosts = {"n1": {"gpus": [{"index": 2, "max_sm_clock_hz": 1.98e9}]}}
    said = replace(reading(*records, cases=cases), environment={"hosts": hosts})
    return Throttling().findings(said)


def test_a_clock_that_stands_still_below_its_highest_without_a_reason_is_noted() -> None:
    (finding,) = locked([1.2e9, 1.2e9], {"application_clocks": 1.0})
    assert (finding.where, finding.severity) == ("GPU 2 on n1", "note")
    assert finding.what == "its clock stood at 1.20 GHz, and can be 1.98 GHz"
    assert finding.evidence.startswith("in all 20 samples in which it was busy, without a reason; nvidia-smi -lgc")


@pytest.mark.parametrize(
    ("clocks", "reasons", "samples"),
    [
        ([1.98e9, 1.98e9], {}, 10),
        ([1.2e9, 1.215e9], {}, 10),
        ([1.2e9, 1.2e9], {"sw_power_cap": 0.0}, 10),
        ([1.2e9, 1.2e9], {}, 4),
    ],
)
def test_a_clock_that_moves_is_at_its_highest_or_little_seen_is_not_locked(clocks, reasons, samples) -> None:
    assert locked(clocks, reasons, samples) == []
