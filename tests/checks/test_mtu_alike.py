from __future__ import annotations

from clusterbench.checks.mtu_alike import MtuAlike
from tests.facts.healthy.infiniband import devinfo
from tests.facts.machine import healthy


def test_a_host_with_smaller_packets_is_found(tmp_path):
    machines = {f"n{number}": healthy() for number in range(3)}
    machines["n1"].programs["ibv_devinfo"] = devinfo(mtu="1024 (3)")
    said = MtuAlike().judge_all([machine.host(tmp_path, name) for name, machine in machines.items()])
    assert said["n1"].faults[0].what == "the packet size of mlx5_0 port 1 is 1024 bytes, and 4096 bytes on most hosts"
    assert said["n1"].faults[0].evidence.startswith("ibv_devinfo: mlx5_0 port 1: active_mtu 1024: ")
    assert said["n0"].healthy == "8 traits as on most hosts"


def test_without_the_program_it_is_not_judged(tmp_path):
    (said,) = MtuAlike().judge_all([healthy().without("ibv_devinfo").host(tmp_path)]).values()
    assert said.unknown[0].takes == "the program ibv_devinfo"


def test_a_host_without_ports_is_not_compared(tmp_path):
    (said,) = MtuAlike().judge_all([healthy().without("/sys/class/infiniband").host(tmp_path)]).values()
    assert said.not_applicable
