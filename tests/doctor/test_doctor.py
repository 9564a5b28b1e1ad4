from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from xml.etree import ElementTree

import pytest

from clusterbench.checks import checks, hosts_of, judge
from clusterbench.doctor import examine
from clusterbench.doctor.accept import accepting, read_accepted, without_effect
from clusterbench.doctor.catalogue import entries
from clusterbench.doctor.formats import as_json, as_junit, as_openmetrics
from clusterbench.doctor.text import text, verdict
from clusterbench.errors import SuiteError
from tests.facts.healthy import gpus
from tests.facts.machine import Machine, healthy

PORT = "/sys/class/infiniband/mlx5_3/ports/1"


def examined(folder, **machines):
    hosts = [machine.host(folder, name) for name, machine in machines.items()]
    return examine([host.name for host in hosts], judge(hosts))


def down():
    machine = healthy()
    machine.files |= {f"{PORT}/state": "1: DOWN\n", f"{PORT}/phys_state": "2: Polling\n"}
    return machine


@pytest.fixture
def sick(tmp_path):
    """Four hosts: on n2 a port is down, n3 cannot say what a process may lock."""
    return examined(tmp_path, n1=healthy(), n2=down(), n3=healthy().without("/proc/self/limits"), n4=healthy())


def test_healthy_hosts_are_healthy_and_nothing_else_is_said(tmp_path):
    examination = examined(tmp_path, n1=healthy(), n2=healthy())
    assert (examination.word, examination.exit_code, examination.found) == ("HEALTHY", 0, ())
    assert verdict(examination).startswith("HEALTHY: in order: ")


def test_healthy_hosts_whose_gpus_idle_are_healthy_before_any_worker_ran(tmp_path):
    machine = healthy()
    del machine.environment["loaded"]
    machine.give(gpus.facts(gpus=tuple(replace(gpu, pcie_generation=1) for gpu in gpus.facts().gpus)))
    environment = {"hosts": {name: dict(machine.host(tmp_path, name).environment) for name in ("n1", "n2")}}
    hosts = hosts_of(environment)
    examination = examine([host.name for host in hosts], judge(hosts))
    assert (examination.word, examination.not_judged, examination.found) == ("HEALTHY", (), ())


def test_what_counts_is_said_first_with_host_place_evidence_command_and_remedy(sick):
    lines = text(sick).splitlines()
    assert lines[0].startswith("SUSPECT: 1 error on 1 of 4 hosts; in order: ")
    assert lines[2] == "n2"
    assert lines[3] == "  error    mlx5_3 port 1 (0000:4b:00.0): is DOWN, its link Polling [port_state]"
    assert lines[4].split() == f"evidence {PORT}/state: 1: DOWN; phys_state: 2: Polling".split()
    assert lines[5].split() == ["confirm", "ibstat"]


def test_what_was_not_judged_says_what_it_would_take(sick):
    said = text(sick)
    assert "Not judged\n" in said
    assert "/proc/self/limits is not there" in said


def test_a_host_that_says_nothing_is_not_healthy(tmp_path):
    examination = examined(tmp_path, n1=Machine())
    assert examination.word == "NOT JUDGED"


def test_the_same_on_several_hosts_is_said_once(tmp_path):
    examination = examined(tmp_path, n1=down(), n2=down())
    (found,) = [each for each in examination.found if each.name == "port_state"]
    assert found.hosts == ("n1", "n2")
    assert "\nall 2 hosts\n" in text(examination)


def test_a_slot_in_which_hosts_differ_is_not_told_of_all(tmp_path):
    other = down()
    other.links["/sys/class/infiniband/mlx5_3/device"] = "../../../devices/pci0003:00/0000:99:00.0"
    (found,) = [each for each in examined(tmp_path, n1=down(), n2=other).found if each.name == "port_state"]
    assert (found.hosts, found.slot) == (("n1", "n2"), "")


def test_an_error_of_two_hosts_comes_before_a_warning_of_one(tmp_path):
    swapping = healthy()
    swapping.files["/proc/swaps"] = "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 33554428 1024 -2\n"
    said = text(examined(tmp_path, n1=swapping, n2=down(), n3=down(), n4=healthy()))
    assert said.index("2 hosts: n2, n3\n  error    mlx5_3 port 1") < said.index("\nn1\n  warning  /dev/nvme0n1p3")


def test_what_is_in_order_has_one_number(sick):
    said = text(sick)
    number = int(re.search(r"in order: (\d+) checks", said)[1])
    assert f"In order ({number} checks; parts of 1 more)" in said
    assert number == len({healthy.name for healthy in sick.healthy} - {"port_state"})


ENTRY = "- {check: port_state, host: n2, where: 'mlx5_3 port 1', reason: waits for a cable, until: 2026-12-31}\n"


def accepted(folder, words):
    path = folder / "accept.yaml"
    path.write_text(words)
    return read_accepted(path)


def test_what_is_accepted_no_longer_counts_and_is_still_shown(sick, tmp_path):
    entries = accepted(tmp_path, ENTRY)
    examination = accepting(sick, entries, date(2026, 12, 31))
    assert examination.exit_code == 0
    assert "accepted: waits for a cable (until 2026-12-31)" in " ".join(text(examination).split())


def test_a_place_may_be_named_as_it_is_printed(sick, tmp_path):
    (found,) = [each for each in sick.found if each.name == "port_state"]
    entries = accepted(tmp_path, ENTRY.replace("mlx5_3 port 1", found.place))
    assert found.place == "mlx5_3 port 1 (0000:4b:00.0)"
    assert accepting(sick, entries, date(2026, 12, 31)).exit_code == 0


@pytest.mark.parametrize(
    ("words", "today"),
    [
        (ENTRY, date(2027, 1, 1)),
        (ENTRY.replace("n2", "n1"), date(2026, 12, 31)),
        (ENTRY.replace("mlx5_3", "mlx5_4"), date(2026, 12, 31)),
    ],
    ids=["after its day", "another host", "another port"],
)
def test_what_an_entry_does_not_name_still_counts(sick, tmp_path, words, today):
    assert accepting(sick, accepted(tmp_path, words), today).exit_code == 1


@pytest.mark.parametrize(
    ("words", "today", "said"),
    [
        (ENTRY, date(2026, 12, 31), []),
        (ENTRY, date(2027, 1, 1), ["'port_state' on n2 was accepted until 2026-12-31: 1 finding of it here."]),
        (
            ENTRY.replace("n2", "n1"),
            date(2026, 12, 31),
            ["'port_state' on n1 at mlx5_3 port 1 accepts nothing: no finding of it here."],
        ),
        (
            ENTRY.replace("n2", "n1"),
            date(2027, 1, 1),
            ["'port_state' on n1 was accepted until 2026-12-31: no finding of it here."],
        ),
    ],
)
def test_an_entry_that_accepts_nothing_is_told(sick, tmp_path, words, today, said):
    found = without_effect(sick, accepted(tmp_path, words), today)
    assert [sentence.partition(":1: ")[2] for sentence in found] == said


def test_a_finding_of_two_hosts_is_accepted_on_one_of_them(tmp_path):
    examination = examined(tmp_path, n1=down(), n2=down())
    entries = accepted(tmp_path, ENTRY)
    parts = accepting(examination, entries, date(2026, 12, 1)).found
    assert [(part.hosts, bool(part.accepted)) for part in parts if part.name == "port_state"] == [
        (("n1",), False),
        (("n2",), True),
    ]


def test_every_name_that_the_list_of_checks_has_can_be_accepted(tmp_path):
    names = {name for entry in entries() for name in (entry.by, *entry.in_logs) if name}
    assert names >= {"not_reached", "dram_ecc", "gpu_slowdown", "weak_pair", "port_error", "device_lost", "xid"}
    for name in names:
        (entry,) = accepted(tmp_path, ENTRY.replace("port_state", name))
        assert entry.check == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "accept.yaml is empty. A list of accepted findings needs at least '[]', which accepts nothing."),
        ("check: port_state\n", "accept.yaml:1: a list of"),
        ("- {check: port_state, host: n1, reason: x}\n", "'until' is missing"),
        ("- {check: prt_state, host: n1, reason: x, until: 2027-01-01}\n", "no check 'prt_state'"),
        ("- {check: port_state, host: n1, reason: x, until: soon}\n", "until: soon must be a day as 2027-01-31"),
        (
            "- {check: port_state, hosts: n1, reason: x, until: 2027-01-01}\n",
            "unknown key 'hosts'. Did you mean 'host'? Allowed: check,",
        ),
        ("- check: port_state\n  host: n1\n  reason:\n  until: 2027-01-01\n", "accept.yaml:3: 'reason' is empty"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path, words, message):
    with pytest.raises(SuiteError) as caught:
        accepted(tmp_path, words)
    assert message in str(caught.value)


def test_programs_read_the_same_as_json(sick):
    said = json.loads(as_json(sick))
    assert (said["word"], said["exit_code"]) == ("suspect", 1)
    assert said["found"][0]["hosts"] == ["n2"]


def test_junit_fails_the_host_alone_and_skips_what_was_not_judged(sick):
    root = ElementTree.fromstring(as_junit(sick))
    failed = [
        (case.get("classname"), case.get("name")) for case in root.iter("testcase") if case.find("failure") is not None
    ]
    skipped = [
        (case.get("classname"), case.get("name")) for case in root.iter("testcase") if case.find("skipped") is not None
    ]
    assert failed == [("port_state", "n2")]
    assert ("memlock", "n3") in skipped


def test_openmetrics_counts_findings_of_each_host(sick):
    lines = as_openmetrics(sick).splitlines()
    assert 'clusterbench_findings{check="port_state",severity="error",host="n2"} 1' in lines
    assert 'clusterbench_findings{check="port_state",severity="error",host="n1"} 0' in lines
    assert 'clusterbench_not_judged{check="memlock",severity="error",host="n3"} 1' in lines
    assert lines[-1] == "# EOF"


def test_what_is_asked_of_several_hosts_does_not_apply_to_one_alone(tmp_path):
    one = examined(tmp_path, n1=healthy())
    assert one.not_applicable["firmware"] == "one host alone has no other to be held against"
    assert one.word == "HEALTHY"
    assert "firmware" not in examined(tmp_path, n2=healthy(), n3=healthy()).not_applicable


def test_a_check_that_fails_costs_no_other_answer(tmp_path, monkeypatch):
    def broken(_, hosts):
        raise KeyError("rate")

    monkeypatch.setattr(checks()["memlock"], "judge_all", broken)
    examination = examined(tmp_path, n1=down())
    assert "port_state" in {found.name for found in examination.found}
    (part,) = [part for part in examination.not_judged if part.name == "memlock"]
    assert (part.why, part.takes) == ("the check itself failed: KeyError: 'rate'", "a report of this as a bug")
