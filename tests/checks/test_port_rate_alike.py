from __future__ import annotations

from clusterbench.checks.port_rate_alike import PortRateAlike
from tests.facts.machine import healthy

IB = "/sys/class/infiniband"


def slow(*numbers):
    machine = healthy()
    for number in numbers:
        machine.files[f"{IB}/mlx5_{number}/ports/1/rate"] = "100 Gb/sec (4X EDR)\n"
    return machine


def judged(folder, *machines):
    return PortRateAlike().judge_all([machine.host(folder, f"n{number}") for number, machine in enumerate(machines)])


def test_a_host_all_of_whose_ports_are_slower_than_those_of_others_is_found(tmp_path):
    said = judged(tmp_path, healthy(), slow(*range(8)), healthy())
    (fault,) = said["n1"].faults
    assert fault.what == "the rate of training ports is 100 Gb/s, and 400 Gb/s on most hosts"
    assert fault.evidence == f"{IB}/mlx5_0/ports/1/rate: 100 Gb/s; on 2 of 3 hosts 400 Gb/s"
    assert not said["n0"].faults


def test_a_port_that_is_slower_than_others_of_its_host_is_another_checks_finding(tmp_path):
    said = judged(tmp_path, healthy(), slow(3), healthy())
    assert not any(of_host.faults for of_host in said.values())


def test_a_host_without_active_ports_is_not_compared(tmp_path):
    said = judged(tmp_path, healthy(), healthy().without(f"{IB}/"), healthy())
    assert said["n1"].not_applicable
