from __future__ import annotations

from clusterbench.checks.rails_alike import RailsAlike
from tests.facts.healthy.described import gpu_address
from tests.facts.machine import healthy


def swapped():
    """Two devices have changed their names, as after a reboot with other probing."""
    machine = healthy()
    links = machine.links
    one, other = (f"/sys/class/infiniband/mlx5_{number}/device" for number in (2, 3))
    links[one], links[other] = links[other], links[one]
    return machine


def test_names_that_moved_are_found_on_the_odd_host(tmp_path):
    machines = {"n0": healthy(), "n1": swapped(), "n2": healthy()}
    said = RailsAlike().judge_all([machine.host(tmp_path, name) for name, machine in machines.items()])
    assert [fault.what for fault in said["n1"].faults] == [
        f"the RDMA device beside the GPU {gpu_address(2)} is mlx5_3, and mlx5_2 on most hosts",
        f"the RDMA device beside the GPU {gpu_address(3)} is mlx5_2, and mlx5_3 on most hosts",
    ]
    assert said["n0"].healthy == "8 traits as on most hosts"


def test_a_gpu_that_left_the_bus_moves_no_rail(tmp_path):
    machines = {"n0": healthy(), "n1": healthy(), "n2": healthy()}
    pcie = machines["n1"].environment["pcie"]
    machines["n1"].environment["pcie"] = [card for card in pcie if card["address"] != gpu_address(3)]
    said = RailsAlike().judge_all([machine.host(tmp_path, name) for name, machine in machines.items()])
    assert not any(of_host.faults for of_host in said.values())
    assert said["n1"].healthy == "7 traits as on most hosts"


def test_a_host_without_a_tree_is_not_compared(tmp_path):
    machine = healthy()
    machine.environment["pcie"] = []
    (said,) = RailsAlike().judge_all([machine.host(tmp_path)]).values()
    assert said.not_applicable
