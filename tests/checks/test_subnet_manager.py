from __future__ import annotations

import pytest

from clusterbench.checks.subnet_manager import SubnetManager
from tests.checks.cards import add_virtual_functions
from tests.facts.machine import healthy, others

PORT = "/sys/class/infiniband/mlx5_3/ports/1"


@pytest.mark.parametrize("lid", ["0x0", "0xffff"])
def test_a_port_without_a_lid_is_named(tmp_path, lid):
    machine = healthy()
    machine.files |= {f"{PORT}/lid": f"{lid}\n", f"{PORT}/state": "2: INIT\n", f"{PORT}/sm_lid": "0x0\n"}
    said = SubnetManager().judge(machine.host(tmp_path))
    (fault,) = said.faults
    assert (fault.where, fault.what) == ("mlx5_3 port 1", "has no LID: no subnet manager has reached it")
    assert fault.evidence == f"{PORT}/lid: {int(lid, 0)}; sm_lid: 0"
    assert said.healthy == "7 InfiniBand ports with a link with an address from a subnet manager"


def test_a_port_whose_subnet_manager_went_away_is_named(tmp_path):
    machine = healthy()
    machine.files[f"{PORT}/sm_lid"] = "0x0\n"
    (fault,) = SubnetManager().judge(machine.host(tmp_path)).faults
    assert fault.what == "has LID 20, and no subnet manager any more"


def test_a_port_without_a_link_is_left_to_its_state(tmp_path):
    machine = healthy()
    machine.files |= {f"{PORT}/lid": "0xffff\n", f"{PORT}/phys_state": "2: Polling\n"}
    assert not SubnetManager().judge(machine.host(tmp_path)).faults


def test_a_lid_that_cannot_be_read_is_not_judged(tmp_path):
    said = SubnetManager().judge(healthy().without(f"{PORT}/lid").host(tmp_path))
    assert said.unknown[0].why == f"{PORT}/lid says nothing"


def test_roce_has_no_subnet_manager(tmp_path):
    assert SubnetManager().judge(others()["roce"].host(tmp_path)).not_applicable


def test_virtual_functions_for_virtual_machines_are_left_out(tmp_path):
    machine = healthy()
    add_virtual_functions(machine, state="4: ACTIVE")
    said = SubnetManager().judge(machine.host(tmp_path))
    assert (said.faults, said.healthy[:2]) == ((), "8 ")
