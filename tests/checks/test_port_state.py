from __future__ import annotations

from clusterbench.checks.port_state import PortState
from tests.checks.cards import add_card, add_virtual_functions
from tests.checks.test_training import all_down
from tests.facts.machine import healthy

PORT = "/sys/class/infiniband/mlx5_3/ports/1"


def test_a_port_that_is_down_is_named_with_both_states(tmp_path):
    machine = healthy()
    machine.files |= {f"{PORT}/state": "1: DOWN\n", f"{PORT}/phys_state": "2: Polling\n"}
    said = PortState().judge(machine.host(tmp_path))
    (fault,) = said.faults
    assert (fault.where, fault.what) == ("mlx5_3 port 1", "is DOWN, its link Polling")
    assert fault.evidence == f"{PORT}/state: 1: DOWN; phys_state: 2: Polling"
    assert said.healthy == "7 RDMA ports ACTIVE"


def test_a_port_that_a_subnet_manager_has_not_reached_is_found(tmp_path):
    machine = healthy()
    machine.files[f"{PORT}/state"] = "2: INIT\n"
    (fault,) = PortState().judge(machine.host(tmp_path)).faults
    assert fault.what == "is INIT, its link LinkUp"


def test_a_port_whose_state_cannot_be_read_is_not_judged_and_the_others_are(tmp_path):
    said = PortState().judge(healthy().without(f"{PORT}/state").host(tmp_path))
    assert said.unknown[0].why == f"{PORT}/state is not there"
    assert said.healthy == "7 RDMA ports ACTIVE"


def test_a_host_without_ports_has_none_to_judge(tmp_path):
    said = PortState().judge(healthy().without("/sys/class/infiniband").host(tmp_path))
    assert said.not_applicable == "no RDMA ports here"


def test_a_port_that_training_does_not_use_is_a_note(tmp_path):
    machine = healthy()
    add_card(machine, "mlx5_8", rate="40 Gb/sec (4X QDR)", link_layer="Ethernet", state="1: DOWN", hca_type="MT4125")
    (fault,) = PortState().judge(machine.host(tmp_path)).faults
    assert (fault.where, fault.severity) == ("mlx5_8 port 1", "note")
    assert fault.what == "is DOWN, its link Disabled; training does not use it"


def test_compute_ports_that_are_all_down_are_errors_whatever_storage_does(tmp_path):
    machine = all_down(healthy())
    add_card(machine, "mlx5_8", rate="200 Gb/sec (4X HDR)", hca_type="MT4123")
    faults = PortState().judge(machine.host(tmp_path)).faults
    assert [(fault.where, fault.severity) for fault in faults] == [(f"mlx5_{each} port 1", None) for each in range(8)]


def test_virtual_functions_for_virtual_machines_are_left_out(tmp_path):
    machine = healthy()
    add_virtual_functions(machine)
    machine.files |= {f"{PORT}/state": "1: DOWN\n", f"{PORT}/phys_state": "2: Polling\n"}
    (fault,) = PortState().judge(machine.host(tmp_path)).faults
    assert (fault.where, fault.severity) == ("mlx5_3 port 1", None)
