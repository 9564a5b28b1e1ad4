from __future__ import annotations

import pytest

from clusterbench.checks.port_rate import PortRate
from tests.checks.cards import add_card
from tests.facts.machine import healthy

RATE = "/sys/class/infiniband/mlx5_{}/ports/1/rate"


def judged(machine, folder):
    return PortRate().judge(machine.host(folder))


def test_a_port_that_lost_three_of_four_lanes_is_named_beside_its_peers(tmp_path):
    machine = healthy()
    machine.files[RATE.format(3)] = "100 Gb/sec (1X NDR)\n"
    said = judged(machine, tmp_path)
    (fault,) = said.faults
    assert fault.where == "mlx5_3 port 1"
    assert fault.what == "runs at 100 Gb/sec (1X NDR), and 7 of its peers at 400 Gb/s"
    assert fault.evidence == f"{RATE.format(3)}: 100 Gb/sec (1X NDR)"
    assert said.healthy == "7 active training ports at the rate of their peers"


@pytest.mark.parametrize(
    ("product", "number"),
    [("NVIDIA H100 80GB HBM3", 8), ("NVIDIA A100-SXM4-80GB", 0), ("NVIDIA L40S", 0)],
)
def test_all_slower_than_the_reference_machine_is_a_note(tmp_path, product, number):
    machine = healthy()
    machine.environment["gpus"] = [{"name": product}] * 8
    for each in range(8):
        machine.files[RATE.format(each)] = "200 Gb/sec (4X HDR)\n"
    faults = judged(machine, tmp_path).faults
    assert [fault.severity for fault in faults] == ["note"] * number
    words = "runs at 200 Gb/sec (4X HDR), as all training ports here; machines with H100 have 400 Gb/s for each GPU"
    assert {fault.what for fault in faults} == ({words} if number else set())


def test_two_ports_of_half_the_rate_for_each_gpu_are_in_order(tmp_path):
    machine = healthy()
    machine.environment["gpus"] = machine.environment["gpus"][:4]
    for each in range(8):
        machine.files[RATE.format(each)] = "200 Gb/sec (4X HDR)\n"
    assert not judged(machine, tmp_path).faults


def test_slower_storage_is_not_held_against_training(tmp_path):
    machine = healthy()
    add_card(machine, "mlx5_bond_0", rate="25 Gb/sec (1X EDR)", link_layer="Ethernet")
    assert not judged(machine, tmp_path).faults


def test_a_rate_that_cannot_be_read_is_not_judged(tmp_path):
    said = judged(healthy().without(RATE.format(2)), tmp_path)
    assert said.unknown[0].why == f"{RATE.format(2)} is not there"
    assert said.healthy.startswith("7 ")


def test_a_host_without_ports_has_none_to_judge(tmp_path):
    assert judged(healthy().without("/sys/class/infiniband"), tmp_path).not_applicable


def test_a_port_that_is_down_makes_the_others_no_slower(tmp_path):
    machine = healthy()
    machine.files["/sys/class/infiniband/mlx5_3/ports/1/state"] = "1: DOWN\n"
    assert not judged(machine, tmp_path).faults


@pytest.mark.parametrize("gone", [(3,), (1, 3, 5, 7)])
def test_fewer_ports_than_gpus_at_the_reference_rate_are_in_order(tmp_path, gone):
    machine = healthy().without(*(f"/sys/class/infiniband/mlx5_{number}" for number in gone))
    said = judged(machine, tmp_path)
    assert (said.faults, said.healthy[:1]) == ((), str(8 - len(gone)))


def test_one_port_has_no_peers_to_be_at_the_rate_of(tmp_path):
    machine = healthy().without(*(f"/sys/class/infiniband/mlx5_{number}" for number in range(1, 8)))
    assert (
        judged(machine, tmp_path).healthy == "mlx5_0 port 1, the only active training port, is as fast as H100 asks for"
    )
    machine.environment["gpus"] = [{"name": "NVIDIA L40S"}]
    assert judged(machine, tmp_path / "unknown").not_applicable.startswith("mlx5_0 port 1 has no peer here")
