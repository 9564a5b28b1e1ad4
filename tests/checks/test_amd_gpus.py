from __future__ import annotations

import pytest

from clusterbench.checks.amd_gpus import AmdGpus
from clusterbench.checks.gpu_count import GpuCount
from clusterbench.checks.row_remapping import RowRemapping
from tests.facts.healthy.described import gpu_address
from tests.facts.machine import healthy, others
from tests.facts.others.mi300x import folder

PATH = f"/sys/bus/pci/devices/{gpu_address(3)}"


def judged(root, machine, check=AmdGpus):
    (said,) = check().judge_all([machine.host(root)]).values()
    return said


def test_a_gpu_with_fewer_lanes_than_it_could_have_is_found(tmp_path):
    machine = others()["mi300x"]
    machine.files[f"{folder(3)}/current_link_width"] = "4\n"
    said = judged(tmp_path, machine)
    (fault,) = said.faults
    assert (fault.where, fault.what) == (f"GPU {gpu_address(3)}", "its PCIe link is x4, and could be x16")
    assert fault.evidence == f"{PATH}/current_link_width: 4; max_link_width: 16"
    assert said.healthy == "7 GPUs of AMD with their driver and all lanes of their PCIe link"


def test_the_speed_of_an_idle_link_is_no_finding(tmp_path):
    machine = others()["mi300x"]
    machine.files[f"{folder(3)}/current_link_speed"] = "2.5 GT/s PCIe\n"
    assert not judged(tmp_path, machine).faults


@pytest.mark.parametrize(
    ("driver", "whats"), [("", ["has no driver"]), ("radeon", ["is held by the driver radeon"]), ("vfio-pci", [])]
)
def test_a_gpu_that_amdgpu_does_not_hold_is_found(tmp_path, driver, whats):
    machine = others()["mi300x"].without(f"{folder(3)}/driver")
    if driver:
        machine.links[f"{folder(3)}/driver"] = f"../../../../bus/pci/drivers/{driver}"
    assert [fault.what for fault in judged(tmp_path, machine).faults] == whats


def test_what_nvml_alone_tells_is_not_judged_and_what_sysfs_tells_is_elsewhere(tmp_path):
    machine = others()["mi300x"]
    assert judged(tmp_path, machine, RowRemapping).unknown[0].why == "NVML does not know the GPUs of AMD here"
    assert judged(tmp_path / "again", others()["mi300x"], GpuCount).not_applicable == "no NVIDIA GPUs here"


def test_nvidias_gpus_are_judged_elsewhere(tmp_path):
    assert judged(tmp_path, healthy()).not_applicable == "no GPUs of AMD here"
