from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.verbs_files import VerbsFiles
from clusterbench.facts.devices import Devices
from tests.facts.machine import healthy


def judged(machine, folder):
    return VerbsFiles().judge(machine.host(folder))


def test_a_container_without_the_files_is_found_for_every_device(tmp_path):
    faults = judged(healthy().without("/dev/infiniband"), tmp_path).faults
    assert [fault.where for fault in faults] == [f"mlx5_{number}" for number in range(8)]
    assert faults[3].what == "cannot be opened: /dev/infiniband/uverbs3 is not here"
    assert faults[3].evidence == "/dev/infiniband/uverbs3: is not there"
    assert {fault.severity for fault in faults} == {None}


def test_a_container_that_was_given_one_device_has_notes_of_the_others(tmp_path):
    without = [f"/dev/infiniband/uverbs{number}" for number in range(1, 8)]
    said = judged(healthy().without(*without), tmp_path)
    assert {fault.severity for fault in said.faults} == {"note"}
    assert said.healthy == "1 RDMA devices that programs can open"


def test_a_file_that_this_user_may_not_open_is_found(tmp_path):
    machine = healthy()
    devices = machine.host(tmp_path, "n0").of(Devices)
    machine.give(replace(devices, files=dict.fromkeys(devices.files, False)))
    assert judged(machine, tmp_path).faults[0].what == "may not be opened by this user: /dev/infiniband/uverbs0"


def test_devices_without_the_module_are_found(tmp_path):
    faults = judged(healthy().without("/sys/class/infiniband_verbs", "/dev/infiniband"), tmp_path).faults
    assert faults[0].what == "has no file for programs: the kernel module ib_uverbs made none"


def test_a_host_without_devices_has_none_to_judge(tmp_path):
    assert judged(healthy().without("/sys/class/infiniband/"), tmp_path).not_applicable == "no RDMA devices here"
