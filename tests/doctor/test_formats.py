from __future__ import annotations

from xml.etree import ElementTree

import pytest

from clusterbench.checks import judge
from clusterbench.diagnoses import Answer, Finding, NotJudged
from clusterbench.doctor import examine
from clusterbench.doctor.formats import as_junit, as_openmetrics
from clusterbench.doctor.logs import examine_logs
from clusterbench.doctor.verb import with_lost
from tests.doctor.test_samples import SAMPLES
from tests.facts.machine import healthy


def cases(examination, outcome):
    """Classname and name of the cases with that element; of None those that pass."""
    every = ElementTree.fromstring(as_junit(examination)).iter("testcase")
    chosen = [case for case in every if (len(case) == 0 if outcome is None else case.find(outcome) is not None)]
    return [(case.get("classname"), case.get("name")) for case in chosen]


@pytest.fixture
def measured(tmp_path):
    """A healthy host, of which a run found one link slow, one thing in order, and could not judge a third."""
    answers = {
        "slow_link": Answer(findings=(Finding("n1 -> n2", "carries half", "error", host="n1"),)),
        "straggler": Answer(healthy=("all ranks are alike",)),
        "slow_pcie": Answer(not_judged=(NotJudged("PCIe", "no GPU was sampled", "a run"),)),
    }
    return examine(["n1"], judge([healthy().host(tmp_path)]), answers)


def test_what_a_run_found_fails_a_case(measured):
    assert cases(measured, "failure") == [("slow_link", "n1")]
    assert 'clusterbench_findings{check="slow_link",severity="error",host="n1"} 1' in as_openmetrics(measured)


def test_what_does_not_apply_to_a_run_is_said_with_why(tmp_path):
    answers = {"slow_link": Answer(not_applicable="one host without GPUs")}
    examination = examine(["n1"], judge([healthy().host(tmp_path)]), answers)
    assert examination.not_applicable["slow_link"] == "one host without GPUs"
    assert "slow_link" not in {part.name for part in (*examination.not_judged, *examination.healthy)}


def test_what_a_run_did_not_judge_is_skipped_and_what_it_did_passes(measured):
    assert ("slow_pcie", "no host in particular") in cases(measured, "skipped")
    assert ("straggler", "no host in particular") in cases(measured, None)
    lines = as_openmetrics(measured).splitlines()
    assert 'clusterbench_not_judged{check="slow_pcie",severity="error",host=""} 1' in lines
    assert not [line for line in lines if line.startswith('clusterbench_findings{check="slow_pcie"')]


def test_a_host_that_was_not_reached_fails_a_case(measured):
    examination = with_lost(measured, ["n2=No route to host"])
    assert ("not_reached", "n2") in cases(examination, "failure")
    assert ("port_state", "n2") in cases(examination, "skipped")
    assert 'clusterbench_findings{check="not_reached",severity="error",host="n2"} 1' in as_openmetrics(examination)


def test_what_only_a_log_tells_fails_a_case_and_what_it_does_not_tell_is_skipped():
    path = SAMPLES / "fabricmanager_gpud.txt"
    if not path.exists():
        pytest.skip("the samples are not here")
    examination, _ = examine_logs([path])
    assert cases(examination, "failure")
    assert cases(examination, None) == []
    assert ("port_state", path.name) in cases(examination, "skipped")


def test_a_finding_of_another_severity_than_its_checks_is_counted_under_its_own(tmp_path):
    machine = healthy()
    machine.files["/sys/class/infiniband/mlx5_3/ports/1/counters/link_downed"] = "3\n"  # few: a note
    lines = as_openmetrics(examine(["n1"], judge([machine.host(tmp_path)]))).splitlines()
    assert 'clusterbench_findings{check="link_errors",severity="warning",host="n1"} 0' in lines


def test_a_diagnosis_is_counted_under_the_severity_of_its_row_in_the_list(tmp_path):
    """As ``unstable``: to the doctor a note, since figures that are not steady say nothing against a machine."""
    answers = {
        "unstable": Answer(findings=(Finding("matmul", "iterations differ too much", "warning"),)),
        "slow_disk": Answer(healthy=("disks are alike",)),
    }
    lines = as_openmetrics(examine(["n1"], judge([healthy().host(tmp_path)]), answers)).splitlines()
    of_runs = [line for line in lines if 'check="unstable"' in line or 'check="slow_disk"' in line]
    assert not [line for line in of_runs if 'severity="error"' in line]
    assert 'clusterbench_findings{check="slow_disk",severity="warning",host=""} 0' in of_runs


def test_each_suite_says_how_many_of_its_cases_failed_and_were_skipped(measured):
    """What Jenkins refuses a file without: tests, failures, errors of ``testsuite`` (xunit-plugin, junit-10.xsd)."""
    root = ElementTree.fromstring(as_junit(with_lost(measured, ["n2=No route to host"])))
    counts = {
        suite.get("name"): [suite.get(count) for count in ("tests", "failures", "errors", "skipped")]
        for suite in root.iter("testsuite")
    }
    assert counts["slow_link"] == ["1", "1", "0", "0"]
    assert counts["port_state"] == ["2", "0", "0", "1"]
    assert [root.get(count) for count in ("tests", "failures", "errors")] == [
        str(sum(int(said[place]) for said in counts.values())) for place in range(3)
    ]


def test_what_xml_forbids_is_replaced(tmp_path):
    machine = healthy()
    machine.files["/sys/class/infiniband/mlx5_2/ports/1/state"] = "1: DOWN\x1b[0m\x01\n"
    written = as_junit(examine(["n1"], judge([machine.host(tmp_path)])))
    (failure,) = ElementTree.fromstring(written).iter("failure")
    assert "is DOWN\N{REPLACEMENT CHARACTER}[0m\N{REPLACEMENT CHARACTER}" in failure.get("message")
