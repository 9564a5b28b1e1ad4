from __future__ import annotations

from clusterbench.checks.training_nics import TrainingNics
from tests.checks.cards import add_card
from tests.facts.machine import healthy


def with_storage(setting="", state="4: ACTIVE"):
    machine = healthy()
    add_card(machine, "mlx5_bond_0", rate="200 Gb/sec (2X NDR)", link_layer="Ethernet", state=state, hca_type="MT41692")
    machine.environment["variables"] = {"NCCL_IB_HCA": setting} if setting else {}
    return machine


def judged(machine, folder):
    return TrainingNics().judge(machine.host(folder))


def test_a_storage_bond_that_nccl_would_take_is_named(tmp_path):
    (fault,) = judged(with_storage(), tmp_path).faults
    assert fault.where == "mlx5_bond_0"
    words = "mlx5_bond_0 (200 Gb/sec (2X NDR) Ethernet) is active, and NCCL takes it too: NCCL_IB_HCA is not set"
    assert fault.what == words
    path = "/sys/class/infiniband/mlx5_bond_0/ports/1"
    assert fault.evidence == f"{path}/rate: 200 Gb/sec (2X NDR); link_layer: Ethernet"


def test_a_setting_that_leaves_storage_out_is_in_order(tmp_path):
    said = judged(with_storage("^mlx5_bond"), tmp_path)
    assert said.healthy == "8 training ports, 1 other not used"
    assert not said.faults


def test_a_setting_that_takes_storage_in_is_found(tmp_path):
    (fault,) = judged(with_storage("mlx5"), tmp_path).faults
    assert fault.what == "NCCL_IB_HCA=mlx5 lets NCCL use mlx5_bond_0 (200 Gb/sec (2X NDR) Ethernet)"


def test_a_setting_that_names_nothing_is_an_error(tmp_path):
    (fault,) = judged(with_storage("rocep"), tmp_path).faults
    assert fault.what == "NCCL_IB_HCA=rocep names no active RDMA port: NCCL falls back to sockets"
    assert fault.severity == "error"


def test_a_prefix_that_misses_a_card_is_found(tmp_path):
    names = ",".join(f"mlx5_{number}" for number in range(7))
    (fault,) = judged(with_storage(f"={names}"), tmp_path).faults
    assert fault.where == "mlx5_7"
    assert fault.what == f"NCCL_IB_HCA=={names} leaves out mlx5_7, of the same kind as those it names"


def test_a_storage_port_that_is_down_is_none_that_nccl_takes(tmp_path):
    assert not judged(with_storage(state="1: DOWN"), tmp_path).faults


def test_one_kind_needs_no_setting(tmp_path):
    machine = healthy()
    del machine.environment["variables"]
    assert judged(machine, tmp_path).healthy == "8 RDMA ports, all of one kind"


def test_two_kinds_are_not_judged_where_the_setting_was_not_recorded(tmp_path):
    machine = with_storage()
    del machine.environment["variables"]
    (said,) = TrainingNics().judge_all([machine.host(tmp_path)]).values()
    assert said.unknown[0].why == "NCCL_IB_HCA was not recorded"


def test_a_host_without_ports_has_none_to_judge(tmp_path):
    assert judged(healthy().without("/sys/class/infiniband"), tmp_path).not_applicable
