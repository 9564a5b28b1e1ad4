from __future__ import annotations

from clusterbench.checks.rdma_device_count import RdmaDeviceCount
from tests.checks.cards import add_card
from tests.facts.machine import Machine, healthy


def judged(folder, **machines):
    return RdmaDeviceCount().judge_all([machine.host(folder, name) for name, machine in machines.items()])


def short(*numbers):
    return healthy().without(*(f"/sys/class/infiniband/mlx5_{number}/" for number in numbers))


def test_a_host_that_lacks_a_device_is_found_with_its_name(tmp_path):
    said = judged(tmp_path, n0=healthy(), n1=healthy(), n2=short(7))
    (fault,) = said["n2"].faults
    assert fault.where == "mlx5_7"
    assert fault.what == "has 7 RDMA devices, and most hosts have 8: mlx5_7 is missing"
    assert fault.evidence.endswith("mlx5_5, mlx5_6; 8 devices on 2 of 3 hosts")
    assert said["n0"].healthy == "8 RDMA devices, as on 2 of 3 hosts"


def test_of_two_hosts_the_one_with_fewer_is_found(tmp_path):
    said = judged(tmp_path, n0=healthy(), n1=short(6, 7))
    assert said["n1"].faults[0].what.startswith("has 6 RDMA devices, and others have 8")
    assert not said["n0"].faults


def test_a_host_with_one_more_is_found_too(tmp_path):
    machine = healthy()
    add_card(machine, "mlx5_8")
    said = judged(tmp_path, n0=healthy(), n1=healthy(), n2=machine)
    assert said["n2"].faults[0].what == "has 9 RDMA devices, and most hosts have 8: mlx5_8 is here alone"


def test_a_host_that_lost_all_is_found_and_one_of_which_nothing_is_known_is_not_judged(tmp_path):
    hosts = {"n0": healthy(), "n1": healthy(), "n2": Machine()}
    said = judged(tmp_path, **hosts)
    assert said["n2"].faults[0].what.startswith("has 0 RDMA devices, and most hosts have 8: mlx5_0, mlx5_1")


def test_one_host_alone_and_hosts_without_any_are_not_judged(tmp_path):
    assert judged(tmp_path, n0=healthy())["n0"].unknown[0].takes == "a second host"
    bare = judged(tmp_path, n1=Machine(), n2=Machine())
    assert bare["n1"].not_applicable == "no RDMA devices on any host"
