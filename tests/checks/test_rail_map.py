from __future__ import annotations

from clusterbench.checks.rail_map import RailMap
from tests.checks.slots import move
from tests.facts.machine import healthy


def judged(machine, folder):
    (said,) = RailMap().judge_all([machine.host(folder)]).values()
    return said


def path_of(machine, name):
    return next(card["path"] for card in machine.environment["pcie"] if name in card["names"])


def test_the_rail_map_of_a_healthy_host_is_said(tmp_path):
    assert judged(healthy(), tmp_path).healthy.startswith("GPU 0 mlx5_0, GPU 1 mlx5_1, GPU 2 mlx5_2, ")


def test_a_card_on_another_switch_is_named(tmp_path):
    machine = healthy()
    move(machine, "mlx5_3", ["0000:d0:01.0"], 0)
    (fault,) = judged(machine, tmp_path).faults
    assert (fault.where, fault.what) == ("mlx5_3", "shares no PCIe switch with a GPU")
    assert fault.evidence == "/sys/bus/pci/devices: mlx5_3 at distance NODE from GPU 0"


def test_two_gpus_that_share_a_device_are_named(tmp_path):
    machine = healthy()
    gpu = machine.environment["pcie"][3]
    gpu["path"] = [*path_of(machine, "mlx5_2")[:-1], "0000:ff:07.0"]
    faults = judged(machine, tmp_path).faults
    assert [(fault.where, fault.what) for fault in faults] == [
        ("mlx5_3", "shares no PCIe switch with a GPU"),
        ("GPU 2, GPU 3", "share mlx5_2, and there is an RDMA device for every GPU of the host"),
    ]


def test_a_switch_for_two_of_each_is_in_order(tmp_path):
    machine = healthy()
    gpu = machine.environment["pcie"][3]
    stem = path_of(machine, "mlx5_2")[:-1]
    gpu["path"] = [*stem, "0000:ff:07.0"]
    move(machine, "mlx5_3", [*stem, "0000:ff:08.0"], 0)
    assert "GPU 2 mlx5_2/mlx5_3, GPU 3 mlx5_2/mlx5_3" in judged(machine, tmp_path).healthy


def test_fewer_devices_than_gpus_make_no_rail_for_each(tmp_path):
    machine = healthy().without("/sys/class/infiniband/mlx5_7/")
    assert judged(machine, tmp_path).not_applicable == "7 RDMA devices for 8 GPUs: no rail for each"


def test_machines_without_switches_have_no_rails(tmp_path):
    machine = healthy()
    for number in range(8):
        move(machine, f"mlx5_{number}", [f"0000:d{number}:01.0"], 0)
    assert judged(machine, tmp_path).not_applicable == "no GPU here shares a PCIe switch with an RDMA device"


def test_a_tree_that_was_not_recorded_is_not_judged(tmp_path):
    machine = healthy()
    del machine.environment["pcie"]
    assert judged(machine, tmp_path).unknown
