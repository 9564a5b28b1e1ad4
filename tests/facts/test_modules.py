from __future__ import annotations

import pytest

from clusterbench.facts.devices import Devices
from clusterbench.facts.modules import Modules
from tests.facts.healthy.modules import CLOSED, OPEN
from tests.facts.machine import Machine, healthy


@pytest.mark.parametrize(("said", "version", "is_open"), [(OPEN, "570.86.15", True), (CLOSED, "535.183.01", False)])
def test_the_open_driver_is_told_from_the_closed_one(tmp_path, said, version, is_open):
    machine = healthy()
    machine.files["/proc/driver/nvidia/version"] = said
    modules = machine.host(tmp_path).of(Modules)
    assert (modules.nvidia_version, modules.nvidia_is_open) == (version, is_open)


def test_modules_have_their_version_where_they_tell_it(tmp_path):
    loaded = healthy().host(tmp_path).of(Modules).loaded
    assert (loaded["gdrdrv"], loaded["ib_uverbs"]) == ("2.4.4", "")
    assert "nv_peer_mem" not in loaded


def test_a_list_that_cannot_be_seen_is_not_an_empty_one(tmp_path):
    assert Machine().host(tmp_path).of(Modules).loaded is None


def test_device_files_are_those_of_gpus_and_rdma(tmp_path):
    devices = healthy().host(tmp_path).of(Devices)
    assert devices.files["/dev/infiniband/uverbs7"]
    assert devices.files["/dev/nvidia-uvm"]
    assert devices.verbs["uverbs3"] == "mlx5_3"
