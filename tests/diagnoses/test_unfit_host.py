from __future__ import annotations

import json
from dataclasses import replace

from clusterbench.checks import checks
from clusterbench.diagnoses.unfit_host import UnfitHost
from tests.facts.machine import healthy
from tests.report.synthetic import case, outcome, reading

IB = "/sys/class/infiniband"


def answer(tmp_path, planted, number=4):
    """What is said of so many hosts, of which these have other files."""
    hosts = {}
    for name in (f"n{each}" for each in range(number)):
        machine = healthy()
        machine.files |= planted.get(name, {})
        hosts[name] = machine.host(tmp_path, name).environment
    of = case("matmul")
    read = reading((outcome(of), None), cases=[of])
    return UnfitHost().answer(replace(read, environment={"hosts": hosts}))


def port(number, state="1: DOWN\n"):
    return {f"{IB}/mlx5_{number}/ports/1/state": state}


SWAP = {"/proc/swaps": "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 33554428 1024 -2\n"}
HUGE_PAGES = {"/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"}


def test_hosts_that_are_well_are_in_order(tmp_path):
    said = answer(tmp_path, {})
    assert said.findings == ()
    assert said.healthy[0].endswith("checks of 4 hosts in order")


def test_the_host_with_the_most_errors_is_first_and_keeps_its_findings_together(tmp_path):
    said = answer(tmp_path, {"n0": SWAP, "n1": port(3), "n2": {**port(1), **port(2), **SWAP}})
    assert [(finding.host, finding.severity) for finding in said.findings] == [
        ("n2", "error"),
        ("n2", "error"),
        ("n2", "warning"),
        ("n1", "error"),
        ("n0", "warning"),
    ]
    first = said.findings[0]
    assert first.what == "mlx5_1 port 1: is DOWN, its link LinkUp"
    assert first.confirm
    assert first.fix == checks()["port_state"].fix


def test_what_is_worth_knowing_of_several_hosts_is_said_once_and_last(tmp_path):
    said = answer(tmp_path, {"n0": HUGE_PAGES, "n1": {**HUGE_PAGES, **SWAP}, "n3": HUGE_PAGES})
    note = said.findings[-1]
    assert (note.severity, note.where, note.host) == ("note", "3 hosts (n0, n1, n3)", "")
    assert note.among == ("n0", "n1", "n3")
    assert len(said.findings) == 2


def test_hosts_of_runs_side_by_side_are_held_against_those_of_their_own_run(tmp_path):
    """Of runs before and after an update of the driver, each in order, the host of the smaller one was unfit."""
    hosts = {f"n{number}": healthy().host(tmp_path, f"n{number}").environment for number in range(4)}
    one = hosts["n3"] = json.loads(json.dumps(hosts["n3"]))
    one["facts"]["gpus"]["driver_version"] = "590.10.01"
    of = case("matmul")
    read = replace(reading((outcome(of), None), cases=[of]), environment={"hosts": hosts})
    (finding,) = UnfitHost().answer(read).findings
    assert (finding.where, finding.what.partition(",")[0]) == ("host n3", "the NVIDIA driver is 590.10.01")
    beside = replace(read, hosts_of_runs=(("n0", "n1", "n2"), ("n3",)))
    said = UnfitHost().answer(beside)
    assert said.findings == ()
    assert said.healthy[0].endswith("checks of 4 hosts in order")
