from __future__ import annotations

import pytest

from clusterbench.checks.pcie_uplink import PcieUplink
from tests.facts.machine import healthy, others
from tests.facts.others.switched import folder, switch

PATH = f"/sys/bus/pci/devices/{switch(3)}"


def judged(root, changed=(), machine=None):
    machine = machine or others()["switched"]
    machine.files |= {f"{folder(3)}/{name}": text for name, text in dict(changed).items()}
    return PcieUplink().judge(machine.host(root))


def test_a_switch_with_fewer_lanes_than_both_ends_have_is_found(tmp_path):
    said = judged(tmp_path, {"current_link_width": "4\n"})
    (fault,) = said.faults
    assert fault.where == f"PCIe bridge {switch(3)}"
    assert fault.what == "its link towards the CPU is x4, and could be x16"
    assert fault.evidence == f"{PATH}/current_link_width: 4; max_link_width: 16"
    assert said.healthy == "7 PCIe switches with their full link towards the CPU"


def test_a_switch_above_a_card_that_runs_slower_is_found(tmp_path):
    (fault,) = judged(tmp_path, {"current_link_speed": "8.0 GT/s PCIe\n"}).faults
    assert fault.what == "its link towards the CPU runs at 8 GT/s, and could at 32 GT/s"


def test_a_switch_above_idle_gpus_alone_may_lower_its_speed(tmp_path):
    machine = others()["switched"]
    machine.files = {path: text for path, text in machine.files.items() if "/infiniband/" not in path}
    assert judged(tmp_path, {"current_link_speed": "8.0 GT/s PCIe\n"}, machine).faults == ()


@pytest.mark.parametrize("end", [folder(3), folder(3).rpartition("/")[0]])
def test_what_one_end_cannot_do_is_no_fault(tmp_path, end):
    machine = others()["switched"]
    machine.files[f"{end}/max_link_width"] = "8\n"
    assert judged(tmp_path, {"current_link_width": "8\n"}, machine).faults == ()


def test_without_switches_there_is_nothing_to_judge(tmp_path):
    assert judged(tmp_path, machine=healthy()).not_applicable == "no PCIe switches here"
