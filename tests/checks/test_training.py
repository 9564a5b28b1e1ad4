from __future__ import annotations

import pytest

from clusterbench.checks._training import is_named, training
from clusterbench.facts.infiniband import Infiniband
from tests.checks.cards import add_card, add_virtual_functions
from tests.facts.machine import Machine, healthy, planted


def devices(ports):
    return [port.device for port in ports]


def test_ports_of_the_kind_with_the_most_bandwidth_are_those_of_training(tmp_path):
    machine = healthy()
    for number in range(8, 12):
        add_card(machine, f"mlx5_{number}", rate="100 Gb/sec (4X EDR)", link_layer="Ethernet", hca_type="MT4125")
    add_card(machine, "mlx5_bond_0", rate="200 Gb/sec (2X NDR)", link_layer="Ethernet", hca_type="MT41692")
    ours = training(machine.host(tmp_path))
    assert devices(ours.ports) == [f"mlx5_{number}" for number in range(8)]
    assert devices(ours.others) == ["mlx5_10", "mlx5_11", "mlx5_8", "mlx5_9", "mlx5_bond_0"]


def test_a_port_that_lost_lanes_stays_one_of_training(tmp_path):
    machine = healthy()
    machine.files["/sys/class/infiniband/mlx5_3/ports/1/rate"] = "100 Gb/sec (1X NDR)\n"
    assert len(training(machine.host(tmp_path)).ports) == 8


@pytest.mark.parametrize("boards", [(3,), (4, 5, 6, 7)])
def test_a_card_of_the_same_model_from_another_maker_trains_too(tmp_path, boards):
    machine = healthy()
    for number in boards:
        machine.files[f"/sys/class/infiniband/mlx5_{number}/board_id"] = "MT_0000001222\n"
    assert len(training(machine.host(tmp_path)).ports) == 8


def test_storage_cards_of_the_same_model_beside_one_training_card_for_each_gpu_do_not(tmp_path):
    machine = healthy()
    for number in (8, 9):
        add_card(machine, f"mlx5_{number}", rate="200 Gb/sec (2X NDR)")
    assert len(training(machine.host(tmp_path)).ports) == 8


@pytest.mark.parametrize("state", ["1: DOWN", "4: ACTIVE"])
def test_virtual_functions_do_not_train_beside_their_cards(tmp_path, state):
    machine = healthy()
    add_virtual_functions(machine, state=state)
    ours = training(machine.host(tmp_path))
    assert devices(ours.ports) == [f"mlx5_{number}" for number in range(8)]
    assert len(ours.others) == 32


def test_virtual_functions_train_where_their_cards_are_not(tmp_path):
    machine = healthy()
    add_virtual_functions(machine, of_each=1, state="4: ACTIVE")
    machine.without(*(f"/sys/class/infiniband/mlx5_{number}/" for number in range(8)))
    assert len(training(machine.host(tmp_path)).ports) == 8


def all_down(machine, rate="10 Gb/sec (4X SDR)"):
    for number in range(8):
        port = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": rate}
        machine.files |= planted(f"/sys/class/infiniband/mlx5_{number}/ports/1", port)
    return machine


@pytest.mark.parametrize("num_storage", [2, 4])
def test_compute_ports_that_are_all_down_stay_those_of_training_beside_gpus(tmp_path, num_storage):
    machine = all_down(healthy())
    for number in range(8, 8 + num_storage):
        add_card(machine, f"mlx5_{number}", rate="200 Gb/sec (4X HDR)", hca_type="MT4123")
    assert devices(training(machine.host(tmp_path)).ports) == [f"mlx5_{number}" for number in range(8)]


def test_a_few_ports_without_cable_are_not_those_of_training(tmp_path):
    machine = healthy()
    for number in range(8, 11):
        add_card(machine, f"mlx5_{number}", link_layer="Ethernet", state="1: DOWN", hca_type="MT4125")
    assert len(training(machine.host(tmp_path)).ports) == 8


def test_without_gpus_ports_that_are_all_down_are_not_those_of_training(tmp_path):
    machine = all_down(healthy())
    machine.environment |= {"gpus": [], "pcie": []}
    for number in (8, 9):
        add_card(machine, f"mlx5_{number}", rate="200 Gb/sec (4X HDR)", hca_type="MT4123")
    assert devices(training(machine.host(tmp_path)).ports) == ["mlx5_8", "mlx5_9"]


def test_bonds_are_those_of_training_where_there_is_nothing_larger(tmp_path):
    machine = healthy().without("/sys/class/infiniband")
    for number in range(4):
        add_card(machine, f"mlx5_bond_{number}", link_layer="Ethernet")
    add_card(machine, "mlx5_0", rate="25 Gb/sec (1X EDR)", link_layer="Ethernet", hca_type="MT4117")
    assert len(training(machine.host(tmp_path)).ports) == 4


def test_the_setting_comes_before_the_rule(tmp_path):
    machine = healthy()
    machine.environment["variables"] = {"NCCL_IB_HCA": "=mlx5_1,mlx5_2:1"}
    assert devices(training(machine.host(tmp_path)).ports) == ["mlx5_1", "mlx5_2"]


def test_the_setting_may_stand_in_nccl_conf_and_the_environment_comes_first(tmp_path):
    machine = healthy()
    machine.files["/etc/nccl.conf"] = "NCCL_IB_HCA==mlx5_1,mlx5_2\n"
    assert devices(training(machine.host(tmp_path)).ports) == ["mlx5_1", "mlx5_2"]
    machine.environment["variables"] = {"NCCL_IB_HCA": "=mlx5_3"}
    assert devices(training(machine.host(tmp_path / "set")).ports) == ["mlx5_3"]


def test_a_setting_that_names_nothing_leaves_the_rule(tmp_path):
    machine = healthy()
    machine.environment["variables"] = {"NCCL_IB_HCA": "rocep"}
    assert len(training(machine.host(tmp_path)).ports) == 8


def test_software_trains_nothing(tmp_path):
    machine = Machine(files={"/sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n"})
    assert training(machine.host(tmp_path)).ports == ()


@pytest.mark.parametrize(
    ("setting", "is_meant"),
    [
        ("mlx5_1", True),
        ("mlx5", True),
        ("=mlx5_1", True),
        ("=mlx5", False),
        ("mlx5_1:2", False),
        ("^mlx5_1", False),
        ("^=mlx5", True),
        ("mlx5_0,mlx5_1:1", True),
    ],
)
def test_nccls_syntax_is_read_as_its_guide_says(tmp_path, setting, is_meant):
    port = healthy().host(tmp_path).of(Infiniband).ports[1]
    assert is_named(port, setting) == is_meant
