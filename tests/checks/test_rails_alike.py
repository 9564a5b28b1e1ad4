from __future__ import annotations

from clusterbench.checks.rails_alike import RailsAlike
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
        "the RDMA device beside GPU 2 is mlx5_3, and mlx5_2 on most hosts",
        "the RDMA device beside GPU 3 is mlx5_2, and mlx5_3 on most hosts",
    ]
    assert said["n0"].healthy == "8 traits as on most hosts"


def test_a_host_without_a_tree_is_not_compared(tmp_path):
    machine = healthy()
    machine.environment["pcie"] = []
    (said,) = RailsAlike().judge_all([machine.host(tmp_path)]).values()
    assert said.not_applicable
