from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.gdrdrv import Gdrdrv
from clusterbench.facts.devices import Devices
from tests.facts.machine import healthy

DEVICE, MODULE = "/dev/gdrdrv", "/sys/module/gdrdrv"


def judged(machine, folder):
    (said,) = Gdrdrv().judge_all([machine.host(folder)]).values()
    return said


def test_without_driver_it_is_a_note(tmp_path):
    (fault,) = judged(healthy().without(DEVICE, MODULE), tmp_path).faults
    assert fault.what == "has no GDRCopy driver: NVSHMEM and DeepEP lack their low-latency exchange"
    assert fault.severity == "note"


def test_a_driver_that_a_container_hides_is_a_warning(tmp_path):
    (fault,) = judged(healthy().without(DEVICE), tmp_path).faults
    assert (fault.what, fault.severity) == ("gdrdrv is loaded, and /dev/gdrdrv is not here", None)


def test_a_device_that_this_user_may_not_open_is_a_warning(tmp_path):
    machine = healthy()
    devices = machine.host(tmp_path, "n0").of(Devices)
    machine.give(replace(devices, files={**devices.files, DEVICE: False}))
    (fault,) = judged(machine, tmp_path).faults
    assert (fault.what, fault.severity) == ("/dev/gdrdrv may not be opened by this user", None)


def test_the_drivers_own_setting_stands_in_for_it(tmp_path):
    machine = healthy().without(DEVICE, MODULE)
    machine.files["/proc/driver/nvidia/params"] = 'RegistryDwords: "PeerMappingOverride=1;"\n'
    assert judged(machine, tmp_path).healthy == "PeerMappingOverride=1 stands in for it"


def test_where_modules_cannot_be_seen_it_is_not_judged(tmp_path):
    assert judged(healthy().without("/sys/module"), tmp_path).unknown[0].takes == "a host that shows /sys/module"


def test_a_host_without_rdma_needs_none(tmp_path):
    assert judged(healthy().without("/sys/class/infiniband"), tmp_path).not_applicable
