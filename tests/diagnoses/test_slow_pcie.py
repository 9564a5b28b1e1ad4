from dataclasses import replace

from clusterbench.diagnoses.slow_pcie import SlowPcie
from tests.report.synthetic import case, observation, outcome, reading


def answer(*cases: dict | None):
    """Of a run with so many cases of GPU 2 of n1, each with what was sampled of it."""
    ran = [replace(case(f"c{number}"), device="cuda") for number in range(len(cases))]
    usual = {"index": 2, "num_busy_samples": 5, "most_pcie_generation": 5, "most_pcie_width": 16}
    usual |= {"max_busy_pcie_generation": 5, "max_busy_pcie_width": 16}
    entries = [
        (outcome(one), observation(one, telemetry={"n1": {"GPU-3f": usual | changed}} if changed is not None else {}))
        for one, changed in zip(ran, cases, strict=True)
    ]
    return SlowPcie().answer(reading(*entries, cases=ran))


def test_a_link_below_its_generation_under_load_is_named():
    (finding,) = answer({"max_busy_pcie_generation": 3}, {"max_busy_pcie_generation": 4}).findings
    assert (finding.where, finding.severity) == ("GPU 2 on n1", "error")
    assert finding.what == "its PCIe link ran at generation 4 under load, and could at 5"
    assert finding.evidence == "NVML: at most generation 4 in 10 samples of a busy GPU"


def test_lost_lanes_are_named():
    (finding,) = answer({"max_busy_pcie_width": 8}).findings
    assert finding.what == "its PCIe link ran on 8 lanes under load, and could on 16"


def test_one_case_at_the_most_is_enough():
    for below in ({"max_busy_pcie_generation": 1}, {"max_busy_pcie_width": 8}):
        said = answer(below, {})
        assert said.findings == ()
        assert said.healthy == ("PCIe links of 1 GPU ran at their most under load",)


def test_two_samples_and_idle_gpus_are_not_judged():
    idle = {"num_busy_samples": 0, "max_busy_pcie_generation": None}
    for few in ({"num_busy_samples": 2, "max_busy_pcie_generation": 1}, idle, None):
        said = answer(few)
        assert (said.findings, said.healthy) == ((), ())
        assert said.not_judged[0].why == "no GPU was sampled at work with the state of its PCIe link"
