from __future__ import annotations

import pytest

from clusterbench.checks.gpu_nic_distance import GpuNicDistance
from tests.checks.slots import move
from tests.facts.machine import healthy, others


def judged(machine, folder):
    (said,) = GpuNicDistance().judge_all([machine.host(folder)]).values()
    return said


@pytest.mark.parametrize(
    ("path", "numa_node", "way", "severity"),
    [
        (["0000:d0:01.0"], 0, "on another NUMA node (SYS)", None),
        (["0000:d0:01.0"], 1, "between host bridges of its NUMA node (NODE)", None),
        (["0000:8e:02.0"], 1, "through the CPU's host bridge (PHB)", "warning"),
    ],
)
def test_a_gpu_without_a_device_on_its_switch_is_named(tmp_path, path, numa_node, way, severity):
    machine = healthy()
    for number in range(4, 7):  # the other cards of its NUMA node go to the other one
        move(machine, f"mlx5_{number}", [f"0000:{number:02x}:01.0"], 0)
    move(machine, "mlx5_7", path, numa_node)
    fault = judged(machine, tmp_path).faults[-1]
    nearest = "mlx5_7" if numa_node else "mlx5_0"
    assert fault.where == "GPU 7"
    assert fault.what == f"shares no PCIe switch with an RDMA device: the nearest, {nearest}, is {way}"
    assert fault.evidence.startswith("/sys/bus/pci/devices/0000:8f:01.0: ")
    assert fault.severity == severity


def test_several_switches_in_one_tree_are_near_enough(tmp_path):
    machine = healthy()
    move(machine, "mlx5_7", ["0000:8e:01.0", "0000:a0:00.0", "0000:a1:00.0", "0000:a2:00.0"], 1)
    assert judged(machine, tmp_path).healthy == "8 GPUs with an RDMA device on their PCIe switch"


def test_fewer_devices_than_gpus_are_a_warning(tmp_path):
    machine = healthy().without("/sys/class/infiniband/mlx5_7/")
    (fault,) = judged(machine, tmp_path).faults
    assert (fault.where, fault.severity) == ("GPU 7", "warning")


def test_a_virtual_machines_tree_is_not_judged(tmp_path):
    machine = healthy()
    machine.environment["pcie"] = [card | {"path": []} for card in machine.environment["pcie"]]
    said = judged(machine, tmp_path)
    assert said.unknown[0].why == "the PCIe tree shows no bridge above a GPU or RDMA device"
    assert not said.faults


def test_a_tree_that_was_not_recorded_is_not_judged(tmp_path):
    machine = healthy()
    del machine.environment["pcie"]
    assert judged(machine, tmp_path).unknown[0].why == "the tree of PCIe devices was not recorded"


def test_a_host_without_gpus_or_with_another_way_has_none_to_judge(tmp_path):
    machine = healthy()
    machine.environment["pcie"] = []
    assert judged(machine, tmp_path / "a").not_applicable == "no GPUs here"
    assert judged(others()["gb200"], tmp_path / "b").not_applicable == "GPUs here reach RDMA devices over NVLink-C2C"
